"""Jobs whose hosts wait for their devices without a Python frame, and run helper threads."""

from dataclasses import replace

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_HIDDEN_WAIT,
    IN_LOCK,
    IN_TORCH_ALL_REDUCE,
    IN_USER_CODE,
    POLLS,
    a_case,
    a_native,
    a_rank,
    picture_of,
    ranks_in,
    with_rank,
)
from tests.diagnosis.causes.asking import named
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.position import Place

SLEEPING = replace(POLLS, running=False)
BLOCKED = a_native("python", library="libpython3.11.so.1.0", run_ns=5_000_000, switches=80)

JOB = "/home/ann/job/main.py"

HOSTS = ranks_in(8, IN_HIDDEN_WAIT, native=POLLS, cpu=1.0, state="R", syscall="", active=True)
"""Hosts that poll for their devices: in Python they are at a line of the user's."""


def diagnose_job(*others, built=HOSTS):
    return diagnose(a_case(with_rank(built, *others)))


def test_hosts_that_poll_wait_for_the_rank_that_does_not():
    diagnosis = diagnose_job(a_rank(5, FETCHING, syscall="nanosleep"))
    assert named(diagnosis) == ("dataloader_stall", [5])
    assert "7 ranks wait for rank 5 in a device wait" in diagnosis.summary


def in_call(call: str) -> str:
    """A rank of the same program in a call of torch.distributed."""
    in_torch = f"{call} torch/distributed/distributed_c10d.py:9"
    return f"{in_torch} < back_off {JOB}:58 < train {JOB}:44 < <module> {JOB}:80"


def test_a_rank_that_is_alone_in_a_barrier_while_the_others_wait_for_their_devices():
    diagnosis = diagnose_job(a_rank(5, in_call("barrier"), native=POLLS, state="R", syscall=""))
    assert named(diagnosis) == ("conditional_collective", [5])
    assert "0-4,6-7 are waiting in a device wait at main.py:51" in diagnosis.summary


@pytest.mark.parametrize("call", ["all_reduce", "wait"])
def test_a_rank_in_a_call_that_is_queued_may_have_a_full_queue(call):
    diagnosis = diagnose_job(a_rank(5, in_call(call), native=POLLS, state="R", syscall=""))
    assert named(diagnosis) == ("unknown", [])
    assert diagnosis.alternatives == ()


def test_most_ranks_in_a_barrier_do_not_accuse_the_one_that_waits_for_its_device():
    built = ranks_in(8, in_call("barrier"), native=POLLS, state="R", syscall="")
    assert diagnose_job(HOSTS[0], built=built).suspects == ()


def test_a_loop_in_python_is_told_from_a_wait_at_the_same_line():
    running = a_native("python", library="python3.11", running=True)
    values = {"cpu": 1.0, "state": "R", "syscall": "", "active": True}
    assert named(diagnose_job(a_rank(5, IN_USER_CODE, native=running, **values))) == (
        "busy_loop",
        [5],
    )
    assert diagnose_job(a_rank(5, IN_USER_CODE, native=POLLS, **values)).suspects == ()


def test_one_that_runs_at_an_unknown_place_may_poll_like_the_others():
    values = {"cpu": 1.0, "state": "R", "syscall": "", "active": True}
    diagnosis = diagnose_job(a_rank(5, IN_USER_CODE, **values))
    assert named(diagnosis) == ("unknown", [])
    with_gil = diagnose_job(a_rank(5, IN_USER_CODE, gil="MainThread", **values))
    assert named(with_gil) == ("busy_loop", [5])
    without_devices = ranks_in(8, IN_TORCH_ALL_REDUCE)
    diagnosis = diagnose_job(a_rank(5, IN_USER_CODE, **values), built=without_devices)
    assert named(diagnosis) == ("busy_loop", [5])


def test_the_library_that_computes_is_named():
    running = a_native("native", library="_tokens.so", running=True)
    values = {"cpu": 1.0, "state": "R", "syscall": "", "active": True}
    diagnosis = diagnose_job(a_rank(5, IN_USER_CODE, native=running, **values))
    assert named(diagnosis) == ("busy_loop", [5])
    assert "_tokens.so" in diagnosis.summary


@pytest.mark.parametrize("native", [POLLS, SLEEPING])
def test_hosts_that_all_wait_accuse_nobody(native):
    """Any of the devices may be the one that does not end: hosts cannot show it."""
    values = {"cpu": 1.0, "state": "R", "syscall": ""} if native.running else {}
    assert diagnose_job(built=ranks_in(8, IN_HIDDEN_WAIT, native=native, **values)).suspects == ()


def test_polling_is_neither_movement_nor_work():
    position = picture_of(HOSTS).by_rank[0]
    assert position.place is Place.CALL_UNKNOWN
    assert not position.moving
    assert not position.spins
    assert not position.presumed


def test_what_a_polling_host_writes_is_movement():
    position = picture_of([a_rank(0, IN_HIDDEN_WAIT, native=POLLS, written=5e6)]).by_rank[0]
    assert position.moving


def test_helpers_that_run_beside_a_blocked_thread_do_not_hide_it():
    """Communication libraries keep a thread that always uses CPU."""
    locked = a_rank(5, IN_LOCK, syscall="futex", native=BLOCKED, cpu=1.0)
    assert named(diagnose_job(locked)) == ("lock_deadlock", [5])
    moved = replace(locked.evidence.dumps[1], native=replace(BLOCKED, run_ns=6_000_000_000))
    works = replace(locked.evidence, dumps=(locked.evidence.dumps[0], moved))
    assert picture_of([locked]).by_rank[5].is_motionless
    assert not picture_of([replace(locked, evidence=works)]).by_rank[5].is_motionless


def test_a_sleep_is_told_with_its_end():
    sleeping = replace(BLOCKED, ends_in_s=572.0)
    diagnosis = diagnose_job(a_rank(5, FETCHING, syscall="clock_nanosleep", native=sleeping))
    assert named(diagnosis) == ("dataloader_stall", [5])
    assert "for another 10 min" in diagnosis.summary


JOINING = "Thread.join @threading.py:1119 < main /home/ann/job/main.py:70 < <module> main.py:80"
IN_RESULT = (
    "wait @threading.py:327 < result @concurrent/futures/_base.py:451"
    " < main /home/ann/job/main.py:70 < <module> main.py:80"
)
IN_RAY = (
    "main_loop @ray/_private/worker.py:935 < <module> @ray/_private/workers/default_worker.py:9"
)


def in_thread(rank, stack, waits, *, native, **values):
    """A rank that trains in a thread, and whose main thread waits for it."""
    return a_rank(
        rank,
        waits,
        syscall="futex",
        native=BLOCKED,
        threads=(("Thread-3 (train)", stack),),
        thread_values={"native": native, "active": native.running},
        **values,
    )


@pytest.mark.parametrize("waits", [JOINING, IN_RESULT, IN_RAY])
def test_a_thread_that_trains_is_judged_in_the_place_of_main(waits):
    hosts = [in_thread(rank, IN_HIDDEN_WAIT, waits, native=POLLS, cpu=1.0) for rank in range(8)]
    late = in_thread(5, FETCHING, waits, native=replace(BLOCKED, run_ns=7))
    diagnosis = diagnose_job(late, built=hosts)
    assert named(diagnosis) == ("dataloader_stall", [5])
    assert "7 ranks wait for rank 5 in a device wait" in diagnosis.summary
    position = picture_of(hosts).by_rank[0]
    assert position.waits_for_device
    assert not position.moving
    assert position.native.thread == "Thread-3 (train)"
    assert diagnose_job(built=hosts).suspects == ()


def test_a_thread_that_trains_and_computes_is_busy():
    hosts = [in_thread(rank, IN_HIDDEN_WAIT, JOINING, native=POLLS, cpu=1.0) for rank in range(8)]
    running = a_native("python", library="python3.11", running=True)
    loops = in_thread(5, IN_USER_CODE, JOINING, native=running, cpu=1.0)
    assert [suspect.rank for suspect in diagnose_job(loops, built=hosts).suspects] == [5]


def test_without_places_of_other_threads_main_decides():
    built = a_rank(0, JOINING, native=BLOCKED, threads=(("trainer", IN_USER_CODE),))
    assert picture_of([built]).by_rank[0].native == BLOCKED


class TestWorkWait:
    """`work.wait()` has no frame of its own: the library under the user's line shows it."""

    WAIT = a_native(
        "native",
        library="libtorch_cpu.so",
        libraries=("libc.so.6", "libtorch_cpu.so", "libtorch_python.so", "libpython3.11.so.1.0"),
    )
    LOCK = a_native(
        "python", library="libpython3.11.so.1.0", libraries=("libc.so.6", "libpython3.11.so.1.0")
    )

    def stage(self, rank, line, native=WAIT, **values):
        stack = f"exchange {JOB}:{line} < train {JOB}:40 < <module> {JOB}:80"
        return a_rank(rank, stack, native=native, syscall="futex", **values)

    def pipeline(self, *others):
        lines = (12, 18, 18, 12)
        return with_rank([self.stage(r, line) for r, line in enumerate(lines)], *others)

    def test_a_lock_in_the_same_function_is_told_from_the_waits_for_messages(self):
        diagnosis = diagnose(a_case(self.pipeline(self.stage(2, 15, self.LOCK))))
        assert named(diagnosis) == ("lock_deadlock", [2])
        assert diagnosis.confidence == 0.96

    def test_one_rank_at_a_lock_is_named_also_if_only_one_other_rank_is_left(self):
        pair = [self.stage(0, 12), self.stage(1, 15, self.LOCK)]
        assert named(diagnose(a_case(pair))) == ("lock_deadlock", [1])

    def test_while_all_wait_for_messages_no_line_accuses_a_rank(self):
        diagnosis = diagnose(a_case(self.pipeline()))
        assert named(diagnosis) == ("unknown", [])

    @pytest.mark.parametrize(
        "native",
        [
            replace(WAIT, running=True),
            replace(WAIT, libraries=("libc.so.6", "libtorch_cpu.so", "libpython3.11.so.1.0")),
            replace(WAIT, library="libgomp.so.1", libraries=("libgomp.so.1", *WAIT.libraries)),
        ],
        ids=["it runs", "another caller", "another library"],
    )
    def test_other_places_in_torch_are_no_waits_for_ranks(self, native):
        built = self.pipeline(self.stage(2, 15, native))
        assert picture_of(built).by_rank[2].place is Place.ELSEWHERE
