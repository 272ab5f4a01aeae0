"""Advice that a person can follow: what it names exists, and is what the rank waits for."""

import re
import tomllib
from importlib import resources

import pytest

from tests.core.builders import (
    IN_BARRIER,
    SAVING,
    a_case,
    a_child,
    a_rank,
    ranks_in,
    with_rank,
)
from watchtower.core import reading
from watchtower.core.diagnosis.diagnosis import diagnose
from watchtower.core.diagnosis.writer.advice import ADVICE, lasts
from watchtower.wire.dumps import Mount


def diagnose_held(stack, **values):
    return diagnose(a_case(with_rank(ranks_in(4, IN_BARRIER), a_rank(2, stack, **values))))


EPOLL = {"syscall": "epoll_wait", "target": "anon_inode:[eventpoll]"}
INTO_PIPE = {"syscall": "write", "target": "pipe:[7]", "children": (a_child(18, "T"),)}


class TestEpoll:
    def test_is_not_a_file_that_a_person_can_check(self):
        said = diagnose_held(SAVING, **EPOLL)
        assert said.cause.value == "checkpoint_stall"
        assert "waiting for a descriptor in epoll_wait()." in said.summary
        assert "anon_inode" not in " ".join([said.summary, *said.next_steps])

    def test_a_socket_has_another_end(self):
        target = "tcp 10.0.0.7:41000 -> 10.9.9.9:443"
        said = diagnose_held(SAVING, syscall="recvfrom", target=target)
        assert said.next_steps[0] == f"check the other end of {target} from gpu-00"


class TestLock:
    LOCKED = "flush /job/metrics.py:33 < <module> /job/main.py:80"
    SENDING = "send @torch/distributed/distributed_c10d.py:1 < step /job/pipe.py:8"

    def lock_in(self, job):
        said = diagnose(a_case(with_rank(job, a_rank(2, self.LOCKED, syscall="futex"))))
        assert said.cause.value == "lock_deadlock"
        return said.next_steps[0]

    def test_may_be_a_message_in_a_job_that_exchanges_messages(self):
        job = ranks_in(4, f"{self.SENDING} < <module> /job/main.py:80")
        assert "wait there for a message of another rank" in self.lock_in(job)

    def test_is_a_lock_in_a_job_of_collectives(self):
        assert "which lock does it acquire" in self.lock_in(ranks_in(4, IN_BARRIER))


class TestCommand:
    WAITING = "wait @threading.py:320 < fill /job/feed.py:18"

    def test_is_named_once(self):
        stack = f"{self.WAITING} < <module> /job/main.py:80"
        said = diagnose_held(stack, syscall="futex")
        dumps = [each for each in said.next_steps if "`py-spy dump --pid" in each]
        assert len(dumps) == 1, said.next_steps
        assert dumps[0].startswith("find the thread that should call set() or notify()")


class TestOpeningAFifo:
    STACK = "publish /job/main.py:4 < <module> /job/main.py:80"

    def test_names_the_path(self):
        said = diagnose_held(self.STACK, syscall="openat", target="/job/out.fifo")
        assert "the other end of /job/out.fifo" in said.next_steps[0]
        assert "lsof" not in " ".join(said.next_steps)

    def test_without_a_path_names_the_line(self):
        said = diagnose_held(self.STACK, syscall="openat", kernel={"wchan": "fifo_open"})
        assert "the file that is opened at main.py:4 in publish" in said.next_steps[0]
        assert "lsof" not in " ".join(said.next_steps)


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
        said = diagnose_held(self.TAKES, syscall="futex", threads=(("feeder", self.FILLS),))
        assert "urlopen()" in said.summary
        assert said.next_steps[0] == (
            "rank 2 on gpu-00 may wait for its thread feeder at feed.py:12 in fill: "
            "find what that thread waits for"
        )


class TestStoppedChildBehindAPipe:
    ADVICE = (
        "check the child process 18, which is stopped (state T), on gpu-00: "
        "it may be at the other end of pipe:[7]"
    )

    def test_is_named_while_a_checkpoint_is_piped_to_it(self):
        assert diagnose_held(SAVING, **INTO_PIPE).next_steps[0] == self.ADVICE

    def test_is_named_while_the_users_code_writes(self):
        stack = "publish /job/main.py:4 < <module> /job/main.py:80"
        assert diagnose_held(stack, **INTO_PIPE).next_steps[0] == self.ADVICE

    def test_a_child_that_runs_is_not(self):
        at = INTO_PIPE | {"children": (a_child(18, "S"),)}
        assert "18" not in diagnose_held(SAVING, **at).next_steps[0]


class TestPageOfAMappedFile:
    """A page fault has no system call, so that the kernel names no file."""

    STACK = "read /job/data.py:88 < __next__ /job/data.py:90 < <module> /job/main.py:80"
    NFS = Mount(kind="nfs4", source="nfs1:/data", point="/data")
    DISK = Mount(kind="ext4", source="/dev/vda1", point="/")
    FUSE = Mount(kind="fuse.s3fs", source="s3fs", point="/bucket")

    def diagnose(self, *mounts, wchan="folio_wait_bit_common"):
        kernel = {"wchan": wchan, "mounts": mounts}
        return diagnose_held(self.STACK, state="D", syscall="", kernel=kernel)

    @pytest.mark.parametrize("wchan", ["folio_wait_bit_common", "nfs_wait_bit_killable", ""])
    def test_is_on_the_only_mount(self, wchan):
        said = self.diagnose(self.NFS, wchan=wchan)
        assert said.cause.value == "uninterruptible_io"
        assert "on the mount /data (nfs1:/data)" in said.summary
        assert said.next_steps[0].startswith("test the mount /data (nfs1:/data) on gpu-00")
        assert "`timeout 10 stat /data`" in said.next_steps[0]
        assert "iostat" not in " ".join(said.next_steps)

    def test_a_command_with_a_path_is_safe_to_copy(self):
        said = self.diagnose(Mount(kind="nfs4", source="nfs1:/data", point="/a;$(id)"))
        assert "`timeout 10 stat '/a;$(id)'`" in said.next_steps[0]

    def test_of_a_user_s_file_system_waits_for_its_process(self):
        said = self.diagnose(self.FUSE)
        assert "process of the mount /bucket (s3fs) on gpu-00" in said.next_steps[0]

    def test_of_a_disk_is_a_matter_of_that_disk(self):
        said = self.diagnose(self.DISK)
        assert "waiting for a disk" in said.summary
        assert "iostat" in said.next_steps[0]

    def test_is_on_one_of_several_mounts(self):
        said = self.diagnose(self.DISK, self.NFS)
        assert said.next_steps[0].endswith("`timeout 10 stat /data` and `timeout 10 stat /`")

    def test_names_mounts_only_of_a_wait_for_them(self):
        said = self.diagnose(self.DISK, self.NFS, wchan="nfs_wait_bit_killable")
        assert said.next_steps[0].startswith("test the mount /data (nfs1:/data) on gpu-00")


A_COMMAND_ON_A_PROCESS = re.compile(
    r"py-spy|kill -|lsof|/proc/|--ppid|-p \{|\bend its process|on pid|the child\b"
)
FACTS = tomllib.loads(resources.files(reading).joinpath("facts/wait_places.toml").read_text())
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
        assert lasts(ADVICE[name])

    def test_a_diagnosis_marks_the_steps_that_last(self):
        said = diagnose_held("score /job/loss.py:17 < <module> /job/main.py:80", state="R")
        assert len(said.next_steps) == 2
        assert said.lasting_steps == said.next_steps[:1]
        assert "py-spy" in said.next_steps[1]
