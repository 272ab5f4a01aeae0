"""Advice that a person can follow: what it names exists, and is what the rank waits for."""

import re

import pytest

from tests.diagnosis.builders import (
    IN_BARRIER,
    SAVING,
    a_case,
    a_child,
    a_rank,
    ranks_in,
    with_rank,
)
from tests.diagnosis.causes.asking import ask
from tests.diagnosis.named import ADVICE
from watchtower.diagnosis.advice import lasts
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence.facts import read_facts
from watchtower.wire.dumps import Mount


def job_held_at(stack, **values):
    return with_rank(ranks_in(4, IN_BARRIER), a_rank(2, stack, **values))


def diagnose_held(stack, **values):
    return diagnose(a_case(job_held_at(stack, **values)))


def entries(cause, stack, **values):
    """Return the names of the advice that a cause shows."""
    return ask(cause, job_held_at(stack, **values)).entries


EPOLL = {"syscall": "epoll_wait", "target": "anon_inode:[eventpoll]"}
INTO_PIPE = {"syscall": "write", "target": "pipe:[7]", "children": (a_child(18, "T"),)}
PUBLISHING = "publish /job/main.py:4 < <module> /job/main.py:80"


class TestEpoll:
    def test_is_not_a_file_that_a_person_can_check(self):
        assert entries("checkpoint_stall", SAVING, **EPOLL)[0] == "look_at_destination"
        diagnosis = diagnose_held(SAVING, **EPOLL)
        assert "anon_inode" not in " ".join([diagnosis.summary, *diagnosis.next_steps])

    def test_a_socket_has_another_end(self):
        at = {"syscall": "recvfrom", "target": "tcp 10.0.0.7:41000 -> 10.9.9.9:443"}
        assert entries("checkpoint_stall", SAVING, **at)[0] == "look_at_other_end"
        assert at["target"] in diagnose_held(SAVING, **at).next_steps[0]


class TestLock:
    LOCKED = "flush /job/metrics.py:33 < <module> /job/main.py:80"
    SENDING = "send @torch/distributed/distributed_c10d.py:1 < step /job/pipe.py:8"

    def lock_in(self, job):
        return ask("lock_deadlock", with_rank(job, a_rank(2, self.LOCKED, syscall="futex"))).entries

    def test_may_be_a_message_in_a_job_that_exchanges_messages(self):
        job = ranks_in(4, f"{self.SENDING} < <module> /job/main.py:80")
        assert self.lock_in(job) == ("read_lock_or_message", "dump_threads")

    def test_is_a_lock_in_a_job_of_collectives(self):
        assert self.lock_in(ranks_in(4, IN_BARRIER)) == ("read_lock", "dump_threads")


class TestCommand:
    WAITING = "wait @threading.py:320 < fill /job/feed.py:18"

    def test_is_named_once(self):
        stack = f"{self.WAITING} < <module> /job/main.py:80"
        assert entries("lock_deadlock", stack, syscall="futex") == ("wait_place", "dump_threads")
        steps = diagnose_held(stack, syscall="futex").next_steps
        assert len([each for each in steps if "`py-spy dump --pid" in each]) == 1, steps


class TestOpeningAFifo:
    def test_names_the_path(self):
        at = {"syscall": "openat", "target": "/job/out.fifo"}
        assert entries("behind_collective", PUBLISHING, **at)[0] == "wait_place"
        steps = diagnose_held(PUBLISHING, **at).next_steps
        assert "/job/out.fifo" in steps[0]
        assert "lsof" not in " ".join(steps)

    def test_without_a_path_names_the_line(self):
        at = {"syscall": "openat", "kernel": {"wchan": "fifo_open"}}
        steps = diagnose_held(PUBLISHING, **at).next_steps
        assert "main.py:4 in publish" in steps[0]
        assert "lsof" not in " ".join(steps)


class TestThreadThatTheSummaryNames:
    TAKES = (
        "Condition.wait @threading.py:327 < Queue.get @queue.py:171 < next_batch /job/main.py:8"
        " < <module> /job/main.py:80"
    )
    FILLS = (
        "SocketIO.readinto @socket.py:706 < urlopen @urllib/request.py:215 < fill /job/feed.py:12"
        " < Thread.run @threading.py:982 < Thread._bootstrap @threading.py:1002"
    )

    def test_is_what_the_advice_is_about(self):
        at = {"syscall": "futex", "threads": (("feeder", self.FILLS),)}
        assert entries("dataloader_stall", self.TAKES, **at)[0] == "look_at_thread"
        assert entries("dataloader_stall", self.TAKES, syscall="futex")[0] == "wait_place"


class TestStoppedChildBehindAPipe:
    def test_is_named_while_a_checkpoint_is_piped_to_it(self):
        assert entries("checkpoint_stall", SAVING, **INTO_PIPE)[0] == "look_at_child"

    def test_is_named_while_the_users_code_writes(self):
        assert entries("behind_collective", PUBLISHING, **INTO_PIPE)[0] == "look_at_child"

    def test_a_child_that_runs_is_not(self):
        at = INTO_PIPE | {"children": (a_child(18, "S"),)}
        assert entries("checkpoint_stall", SAVING, **at)[0] == "look_at_destination"


class TestPageOfAMappedFile:
    """A page fault has no system call, so that the kernel names no file."""

    STACK = "read /job/data.py:88 < __next__ /job/data.py:90 < <module> /job/main.py:80"
    NFS = Mount(kind="nfs4", source="nfs1:/data", point="/data")
    DISK = Mount(kind="ext4", source="/dev/vda1", point="/")
    FUSE = Mount(kind="fuse.s3fs", source="s3fs", point="/bucket")

    def fault_on(self, *mounts, wchan="folio_wait_bit_common"):
        kernel = {"wchan": wchan, "mounts": mounts}
        return {"stack": self.STACK, "state": "D", "syscall": "", "kernel": kernel}

    def entry(self, *mounts, **values):
        return entries("uninterruptible_io", **self.fault_on(*mounts, **values))[0]

    @pytest.mark.parametrize("wchan", ["folio_wait_bit_common", "nfs_wait_bit_killable", ""])
    def test_is_on_the_only_mount(self, wchan):
        assert self.entry(self.NFS, wchan=wchan) == "blocked_nfs"
        diagnosis = diagnose_held(**self.fault_on(self.NFS, wchan=wchan))
        assert diagnosis.cause.value == "uninterruptible_io"
        assert "iostat" not in " ".join(diagnosis.next_steps)

    def test_a_command_with_a_path_is_safe_to_copy(self):
        hostile = Mount(kind="nfs4", source="nfs1:/data", point="/a;$(id)")
        assert "stat '/a;$(id)'`" in diagnose_held(**self.fault_on(hostile)).next_steps[0]

    def test_of_a_user_s_file_system_waits_for_its_process(self):
        assert self.entry(self.FUSE) == "blocked_fuse"

    def test_of_a_disk_is_a_matter_of_that_disk(self):
        assert self.entry(self.DISK) == "blocked_io"

    def test_is_on_one_of_several_mounts(self):
        assert self.entry(self.DISK, self.NFS) == "blocked_mounts"

    def test_names_mounts_only_of_a_wait_for_them(self):
        assert self.entry(self.DISK, self.NFS, wchan="nfs_wait_bit_killable") == "blocked_nfs"


A_COMMAND_ON_A_PROCESS = re.compile(
    r"py-spy|kill -|lsof|/proc/|--ppid|-p \{|\bend its process|on pid|the child\b"
)
FACTS = read_facts("wait_places")
EVERY_ADVICE = ADVICE | {
    f"wait place {number}": row["advice"]
    for number, row in enumerate(FACTS["frame"] + FACTS["call"])
}


class TestAfterTheProcessHasEnded:
    @pytest.mark.parametrize("name", EVERY_ADVICE)
    def test_no_command_on_a_process_stays(self, name):
        advice = EVERY_ADVICE[name]
        assert not (lasts(advice) and A_COMMAND_ON_A_PROCESS.search(advice)), advice

    @pytest.mark.parametrize("name", ["restart", "read_traceback", "find_why_worker_ended"])
    def test_what_stays_true_stays(self, name):
        assert lasts(ADVICE[name.upper()])

    def test_a_diagnosis_marks_the_steps_that_last(self):
        diagnosis = diagnose_held("score /job/loss.py:17 < <module> /job/main.py:80", state="R")
        assert len(diagnosis.next_steps) == 2
        assert diagnosis.lasting_steps == diagnosis.next_steps[:1]
        assert "py-spy" in diagnosis.next_steps[1]
