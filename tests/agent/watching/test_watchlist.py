"""The ranks under watch: a job that gets its name later."""

from __future__ import annotations

import os
from dataclasses import replace

from agent.procfs import Proc
from agent.ranks.found_rank import FoundRank, JobKey
from agent.ranks.process_table import Process
from agent.ranks.sources.source import RankClaim
from agent.watching.watchlist import Watchlist
from watchtower.wire.report import Launch

LAUNCH = Launch(id="l")


def found(pid: int, rank: int = 0, job: str = "j") -> FoundRank:
    stat = Proc().stat(pid)
    assert stat is not None
    process = Process(pid=pid, ppid=stat.ppid, start_time=stat.start_time, comm=stat.comm)
    return FoundRank(
        process=process,
        job=JobKey(job),
        claim=RankClaim(rank=rank),
        page=None,
        launch=LAUNCH,
    )


def test_a_job_named_later_is_taken_over() -> None:
    watchlist, rank = Watchlist(Proc(), 1.0), found(os.getpid())
    watchlist.update([rank], 0.0)
    watchlist.update([replace(rank, job=JobKey("named"))], 1.0)
    assert [each.job for each in watchlist.vitals(1.0)] == ["named"]
