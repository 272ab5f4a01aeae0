"""Which ranks are watched if there are too many, and what is said of the others. By value."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.procfs import Proc
from agent.ranks.found_rank import FoundRank, JobKey
from agent.ranks.process_table import Process
from agent.ranks.sources.source import RankClaim
from agent.ranks.unwatched import (
    LARGE_JOB,
    MAX_LIVING,
    NO_RANK,
    SENTENCES,
    WRONG_RANK,
    UnwatchedProcess,
    count_unwatched,
    keep_within_quota,
)
from agent.watching.watchlist import Watchlist
from tests.properties import examples
from watchtower.wire.bounds import MAX_TEXT
from watchtower.wire.report import (
    MAX_UNWATCHED,
    MAX_UNWATCHED_PIDS,
    OTHER_REASONS,
    OVER_LIMIT,
    Launch,
)


def a_process(pid: int, owner: str = "uid:1", job: str = "", **words: str) -> UnwatchedProcess:
    return UnwatchedProcess(**{"pid": pid, "owner": owner, "job": job, "reason": NO_RANK, **words})


def test_processes_of_one_reason_owner_and_job_are_one_entry() -> None:
    (entry,) = count_unwatched(a_process(pid, job="llama") for pid in range(12, 0, -1))
    assert (entry.reason, entry.owner, entry.job, entry.count) == (NO_RANK, "uid:1", "llama", 12)
    assert entry.pids == tuple(range(1, MAX_UNWATCHED_PIDS + 1))
    assert entry.text.startswith(
        "12 processes of uid:1 in job 'llama' (pid 1, 2, 3, ...) are not watched: the threads show"
    )


def test_the_mistake_is_in_the_sentence() -> None:
    (entry,) = count_unwatched([a_process(7, reason=WRONG_RANK, detail="pid 7: RANK=abc is bad")])
    assert entry.text == (
        "1 process of uid:1 (pid 7) is not watched under the right rank: "
        "pid 7: RANK=abc is bad. Correct the variables of the rank where the job starts"
    )


def test_one_owner_s_many_jobs_do_not_hide_another_owner() -> None:
    flood = [a_process(pid, "uid:1", f"job-{pid}") for pid in range(1000)]
    found = count_unwatched([*flood, a_process(5000, "uid:2", reason=OVER_LIMIT)])
    assert len(found) == MAX_UNWATCHED
    assert "uid:2" in {entry.owner for entry in found}
    assert sum(entry.count for entry in found) == 1001
    assert found[-1].reason == OTHER_REASONS


@given(
    st.lists(
        st.tuples(
            st.sampled_from([name for name in SENTENCES if name != OTHER_REASONS]),
            st.text(max_size=400),
            st.text(max_size=400),
            st.text(max_size=2000),
        ),
        max_size=40,
    )
)
def test_every_text_fits_and_every_process_is_counted(
    rows: list[tuple[str, str, str, str]],
) -> None:
    processes = [
        UnwatchedProcess(pid=pid, owner=owner, job=job, reason=reason, detail=detail)
        for pid, (reason, owner, job, detail) in enumerate(rows)
    ]
    found = count_unwatched(processes)
    assert sum(entry.count for entry in found) == len(rows)
    assert all(entry.text.isprintable() and len(entry.text) <= MAX_TEXT for entry in found)


def a_rank(pid: int, job: str, *, has_page: bool = True, owner: str = "uid:1") -> FoundRank:
    return FoundRank(
        process=Process(pid=pid, ppid=1, start_time=pid, comm="python"),
        job=JobKey(job, owner),
        claim=RankClaim(rank=pid),
        page=None,
        launch=Launch(id="l"),
        has_page=has_page,
    )


def test_no_rank_is_left_out_below_the_quota() -> None:
    ranks = [a_rank(pid, "j") for pid in range(MAX_LIVING)]
    kept, left_out = keep_within_quota(ranks, set())
    assert kept == ranks
    assert left_out == []


@given(
    good=st.integers(1, LARGE_JOB),
    flood=st.integers(MAX_LIVING, 3 * MAX_LIVING),
    good_is_first=st.booleans(),
    flood_is_watched=st.booleans(),
)
def test_a_large_job_takes_no_room_from_the_others(
    good: int, flood: int, good_is_first: bool, flood_is_watched: bool
) -> None:
    at = 0 if good_is_first else 100_000
    mine = [a_rank(at + pid, "good") for pid in range(good)]
    theirs = [a_rank(10_000 + pid, "flood") for pid in range(flood)]
    watched = {rank.pid for rank in theirs} if flood_is_watched else set()
    kept, left_out = keep_within_quota([*mine, *theirs], watched)
    assert len(kept) == MAX_LIVING
    assert set(mine) <= set(kept)
    assert len(left_out) == good + flood - MAX_LIVING
    assert {rank.job.name for rank in left_out} == {"flood"}


def test_who_is_watched_stays_when_many_small_jobs_come() -> None:
    mine = [a_rank(pid, "good") for pid in range(8)]
    theirs = [a_rank(1000 + pid, f"job {pid}") for pid in range(3 * MAX_LIVING)]
    kept, _ = keep_within_quota([*theirs, *mine], {rank.pid for rank in mine})
    assert set(mine) <= set(kept)


@examples(20)
@given(
    good=st.integers(1, MAX_LIVING // 3),
    floods=st.integers(1, 2),
    is_late=st.booleans(),
    jobs=st.sampled_from([1, 16, 3 * MAX_LIVING]),
)
def test_other_owners_floods_take_no_room_of_an_owner_s_share(
    good: int, floods: int, is_late: bool, jobs: int
) -> None:
    mine = [a_rank(pid, f"good {pid % 3}", owner="uid:1") for pid in range(good)]
    theirs = [
        a_rank(10_000 * owner + pid, f"good {pid % jobs}", owner=f"uid:{owner}")
        for owner in range(2, 2 + floods)
        for pid in range(3 * MAX_LIVING)
    ]
    watched = {rank.pid for rank in theirs[:MAX_LIVING]} if is_late else set()
    kept, left_out = keep_within_quota([*theirs, *mine], watched)
    assert len(kept) == MAX_LIVING
    assert set(mine) <= set(kept)
    assert {rank.job.owner for rank in left_out}.isdisjoint({"uid:1"})


@pytest.mark.long
def test_a_job_that_restarts_in_a_loop_leaves_the_ends_of_others_known() -> None:
    watchlist = Watchlist(Proc(), 1.0)
    for number in range(300):
        rank = a_rank(5_000_000 + number, "good" if number < 4 else "loop")
        watchlist.update([rank], float(number))  # no such process: it has ended at once
    known = Counter(each.job for each in watchlist.found())
    assert known == {JobKey("good", "uid:1"): 4, JobKey("loop", "uid:1"): 252}


def test_an_owner_of_many_jobs_leaves_the_ends_of_others_known() -> None:
    watchlist = Watchlist(Proc(), 1.0)
    for number in range(300):
        mine = number < 4
        name, owner = ("good", "uid:1") if mine else (f"j{number}", "uid:2")
        watchlist.update([a_rank(5_000_000 + number, name, owner=owner)], float(number))
    assert [each.job.name for each in watchlist.found()].count("good") == 4
