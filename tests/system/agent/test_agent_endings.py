"""How real processes end, as the agent tells it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from agent.collectors.process import TickBudget
from agent.procfs import Proc
from agent.watching.rank import WatchedRank
from tests.agent.agent_scene import wait_until
from tests.system.agent.agent_processes import Victim
from watchtower.wire.report import Ending, EndingKind, ProcessState, RankVitals

Start = Callable[..., Victim]
Watch = Callable[[], WatchedRank]


def vitals_at_the_end(rank: WatchedRank) -> RankVitals:
    wait_until(lambda: rank.notice_end(time.monotonic()), "the end is noticed")
    return rank.vitals(time.monotonic(), TickBudget())


def ending(rank: WatchedRank) -> Ending:
    ended = vitals_at_the_end(rank).ended
    assert ended is not None
    return ended


def reaped(victim: Victim, rank: WatchedRank) -> Ending:
    victim.process.wait()
    ended = ending(rank)
    assert ended.age_s < 30
    return ended


def test_an_exit_code_is_read_although_somebody_else_waits(start: Start, watch: Watch) -> None:
    victim = start(RANK="0")
    rank = watch()
    victim.begin("os._exit(3)")
    ended = ending(rank)
    assert (ended.kind, ended.code) == (EndingKind.EXIT, 3)


def test_a_signal_is_read(start: Start, watch: Watch) -> None:
    victim = start(RANK="0")
    rank = watch()
    victim.process.kill()
    ended = ending(rank)
    assert (ended.kind, ended.code) == (EndingKind.SIGNAL, signal.SIGKILL)


def test_an_exception_is_told_by_the_page(start: Start, watch: Watch) -> None:
    victim = start(RANK="0")
    victim.do("beat(3)")
    rank = watch()
    victim.begin("raise ValueError('bad shard 7')")
    ended = reaped(victim, rank)
    assert (ended.exception_type, ended.exception_text) == ("ValueError", "bad shard 7")
    assert ended.kind in (EndingKind.EXIT, EndingKind.UNKNOWN)
    assert ended.code == 1


def test_an_exception_is_dated_although_its_process_needs_long_to_end(
    start: Start, watch: Watch
) -> None:
    victim = start(RANK="0")
    victim.do("beat(3)")
    victim.do("import atexit, time; atexit.register(time.sleep, 1)")
    rank = watch()
    victim.begin("raise ValueError('NCCL error\\n\\nLast error:\\nno space left')")
    ended = reaped(victim, rank)
    assert ended.exception_text == "NCCL error | Last error: | no space left"
    assert 1 <= ended.raised_before_s < 30


def test_the_last_step_is_still_told_after_the_end(start: Start, watch: Watch) -> None:
    victim = start(RANK="0")
    rank = watch()
    victim.do("beat(41)")
    victim.process.kill()
    victim.process.wait()
    beat = vitals_at_the_end(rank).beat
    assert beat is not None
    assert beat.step == 41


def test_a_zombie_has_ended(start: Start, watch: Watch) -> None:
    victim = start(RANK="0")
    rank = watch()
    victim.process.send_signal(signal.SIGTERM)
    vitals = vitals_at_the_end(rank)  # nobody has waited for it yet
    assert vitals.state is ProcessState.ZOMBIE
    assert vitals.ended is not None
    assert (vitals.ended.kind, vitals.ended.code) == (EndingKind.SIGNAL, signal.SIGTERM)


def test_a_process_whose_main_thread_ended_lives_on(start: Start, watch: Watch) -> None:
    victim = start(RANK="0")
    rank = watch()
    victim.do("threading.Thread(target=time.sleep, args=(600,)).start()")
    victim.begin("import ctypes; ctypes.CDLL(None).pthread_exit(None)")
    stat = wait_until(
        lambda: (s := Proc().stat(victim.pid)) and s.state == "Z" and s, "the main thread is gone"
    )
    assert stat
    assert not rank.notice_end(time.monotonic())
    assert rank.vitals(time.monotonic(), TickBudget()).state is ProcessState.ZOMBIE
