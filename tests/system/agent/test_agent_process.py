"""State and movement of real process trees, and real processes under watch."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.collectors.process import (
    BlockMeter,
    MovementMeter,
    OpenFiles,
    read_state,
)
from agent.procfs import Proc
from agent.ranks.found_rank import JobKey
from agent.ranks.process_table import ProcessTable
from agent.watching.watchlist import ENDED_KEPT_S, Watchlist
from tests.agent.watching.test_watchlist import found
from tests.system.agent.agent_processes import Victim
from tests.waiting import wait_until
from watchtower.wire.report import Movement, ProcessState

Start = Callable[..., Victim]


class Scene:
    """A table of processes and a meter on one of them."""

    def __init__(self, pid: int) -> None:
        self.proc = Proc()
        self.table = ProcessTable(self.proc)
        new, _ = self.table.refresh()
        self.process = next(process for process in new if process.pid == pid)
        self.files = OpenFiles(self.proc, pid)
        self.meter = MovementMeter(self.proc, self.process, self.files)

    def sample(self, budget: int = 64) -> Movement:
        self.table.refresh()
        return self.meter.sample(self.files.stat(), budget)[0]

    def state(self) -> tuple[ProcessState, str]:
        return read_state(self.files, self.files.stat())


@pytest.fixture
def scene(start: Start) -> tuple[Victim, Scene]:
    victim = start(RANK="0")
    return victim, Scene(victim.pid)


def test_a_sleeping_rank_does_not_move(scene: tuple[Victim, Scene]) -> None:
    _, meters = scene
    meters.sample()
    time.sleep(0.3)
    movement = meters.sample()
    assert movement.cpu_cores < 0.2
    assert movement.io_readable


def test_a_thread_that_did_not_run_is_blocked_and_one_that_ran_is_not(
    scene: tuple[Victim, Scene],
) -> None:
    victim, meters = scene
    block = BlockMeter(meters.files)
    wait_until(lambda: block.measure(time.monotonic()) > 0.3, "the thread is blocked")
    os.kill(victim.pid, signal.SIGSTOP)  # it must run to stop and to continue
    wait_until(
        lambda: meters.state()[0] is ProcessState.STOPPED,
        "it is stopped",
    )
    assert block.measure(time.monotonic()) == 0.0
    os.kill(victim.pid, signal.SIGCONT)
    own = BlockMeter(OpenFiles(Proc(), os.getpid()))
    assert own.measure(1.0) == 0.0
    sum(range(10**6))
    assert own.measure(2.0) == 0.0
    assert BlockMeter(OpenFiles(Proc(), 2**22 + 1)).measure(1.0) == 0.0


def test_the_cpu_of_a_living_child_is_the_ranks(scene: tuple[Victim, Scene]) -> None:
    victim, meters = scene
    meters.sample()
    victim.do("pid = os.fork(); pid or spin()")
    wait_until(lambda: meters.sample().cpu_cores > 0.2, "the child's CPU shows")
    own = meters.proc.stat(victim.pid)
    assert own is not None
    assert own.cpu_s < 5


def test_the_cpu_of_an_orphaned_grandchild_is_the_ranks(scene: tuple[Victim, Scene]) -> None:
    victim, meters = scene
    victim.do("helper = os.fork(); helper or (os.fork() or spin(), time.sleep(600))")
    wait_until(lambda: meters.sample().cpu_cores > 0.2, "the grandchild's CPU shows")
    victim.do("os.kill(helper, 9); os.waitpid(helper, 0)")
    for _ in range(3):
        wait_until(lambda: meters.sample().cpu_cores > 0.2, "it still shows")


def test_bytes_written_to_storage_are_seen(scene: tuple[Victim, Scene]) -> None:
    victim, meters = scene
    path = Path("/var/tmp") / f"watchtower-test-{os.getpid()}"
    meters.sample()
    try:
        victim.do(f"f = open('{path}', 'wb'); f.write(b'x' * (1 << 22)); f.flush()")
        victim.do("os.fsync(f.fileno())")
        assert meters.sample().write_bytes_per_s > 0
    finally:
        path.unlink()


def test_more_children_than_the_budget_take_turns(scene: tuple[Victim, Scene]) -> None:
    victim, meters = scene
    for _ in range(3):
        victim.do("pid = os.fork(); pid or sleep_in_a_loader()")
    meters.table.refresh()
    _, left = meters.meter.sample(meters.files.stat(), 2)
    assert left == 0
    _, left = meters.meter.sample(meters.files.stat(), 2)
    assert all(meter.last is not None for meter in meters.meter._children.values())


def test_a_stopped_process_is_stopped_and_later_runs_again(scene: tuple[Victim, Scene]) -> None:
    victim, meters = scene
    os.kill(victim.pid, signal.SIGSTOP)
    wait_until(
        lambda: meters.state()[0] is ProcessState.STOPPED,
        "it is stopped",
    )
    os.kill(victim.pid, signal.SIGCONT)
    wait_until(
        lambda: meters.state()[0] is ProcessState.SLEEPING,
        "it sleeps",
    )


def test_the_kernel_function_it_sleeps_in_is_told(scene: tuple[Victim, Scene]) -> None:
    victim, meters = scene
    wait_until(victim.is_asleep, "it waits for orders")
    state, wchan = meters.state()
    assert state is ProcessState.SLEEPING
    assert "pipe" in wchan or not wchan  # some kernels tell nobody


def test_a_process_that_is_gone_is_gone(scene: tuple[Victim, Scene]) -> None:
    victim, meters = scene
    meters.state()
    victim.close()
    assert meters.state() == (ProcessState.GONE, "")


def test_one_bad_rank_is_left_out_and_said_once(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    watchlist = Watchlist(Proc(), 1.0)
    good, bad = found(os.getpid(), 1), found(start().pid, 2, job="x" * 1000)
    for _ in range(3):
        watchlist.update([bad, good], time.monotonic())
        assert [each.rank for each in watchlist.vitals(time.monotonic())] == [1]
    assert caplog.text.count("cannot be reported: ValueError") == 1


def test_an_ended_rank_stays_for_a_while_and_then_goes(start: Start) -> None:
    watchlist, victim = Watchlist(Proc(), 1.0), start()
    rank = found(victim.pid)
    now = time.monotonic()
    watchlist.update([rank], now)
    victim.close()
    wait_until(lambda: watchlist.notice_ends(now), "the end is noticed")
    watchlist.update([], now + ENDED_KEPT_S - 1)
    (vitals,) = watchlist.vitals(now + 60.0)
    assert vitals.ended is not None
    assert vitals.ended.age_s == pytest.approx(60.0)
    assert watchlist.living() == []
    assert [each.job for each in watchlist.found()] == [JobKey("j")]
    watchlist.update([], now + ENDED_KEPT_S + 1)
    assert watchlist.vitals(now) == ()


def test_a_living_process_that_is_no_rank_any_more_is_dropped(start: Start) -> None:
    watchlist = Watchlist(Proc(), 1.0)
    watchlist.update([found(start().pid)], 0.0)
    watchlist.update([], 1.0)
    assert watchlist.vitals(1.0) == ()
