"""Real processes under watch: isolation, and endings that stay for a while."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from agent.procfs import Proc
from agent.ranks.found_rank import FoundRank, JobKey
from agent.ranks.process_table import Process
from agent.ranks.sources.source import RankClaim
from agent.watching.watchlist import ENDED_KEPT_S, Watchlist
from tests.agent.agent_scene import wait_until
from tests.system.agent.agent_processes import Victim
from watchtower.wire.report import Launch

LAUNCH = Launch(id="l")

Start = Callable[..., Victim]


def found(pid: int, rank: int = 0, job: str = "j") -> FoundRank:
    stat = Proc().stat(pid)
    assert stat is not None
    process = Process(pid=pid, ppid=stat.ppid, start_time=stat.start_time, comm=stat.comm)
    return FoundRank(
        process=process, job=JobKey(job), claim=RankClaim(rank=rank), page=None, launch=LAUNCH
    )


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
