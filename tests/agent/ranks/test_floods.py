"""Processes and jobs by the thousand: every job keeps its share of what an agent watches."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.delivery.shipping import encode_report
from agent.procfs import Proc, Stat
from agent.ranks.candidates import Candidate, CheckSchedule
from agent.ranks.found_rank import FoundRank, JobKey
from agent.ranks.launchers import RankClaim
from agent.ranks.pages import find_page
from agent.ranks.process_table import MAX_LINEAGE, Process, ProcessTable
from agent.ranks.unwatched import LARGE_JOB, MAX_LIVING, keep_within_quota
from agent.watching.watchlist import Watchlist
from tests.properties import examples
from watchtower.service.daemon import BURST, LogLimit
from watchtower.wire.bounds import MAX_REPORT_BYTES
from watchtower.wire.report import Launch, RankVitals, Report

LAUNCH = Launch(id="l")


class Births(Proc):
    """A /proc in which processes come and go as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.parents: dict[int, int] = {1: 0}

    def pids(self) -> set[int]:
        return set(self.parents)

    def stat(self, pid: int) -> Stat | None:
        return Stat(
            comm="x",
            state="S",
            ppid=self.parents[pid],
            kernel_thread=False,
            cpu_s=0.0,
            start_time=pid,
            start_code=2,
            exit_code=0,
        )


def test_orphans_that_end_are_forgotten_by_whoever_they_were_left_to() -> None:
    proc = Births()
    table = ProcessTable(proc)
    table.refresh()
    (init,) = table._processes.values()
    for number in range(10, 1000, 2):
        proc.parents[number], proc.parents[number + 1] = 1, number
        table.refresh()
        del proc.parents[number]  # the parent first: its child is init's now
        table.refresh()
        assert [child.pid for child in init.descendants()] == [number + 1]
        del proc.parents[number + 1]
        table.refresh()
        assert list(init.descendants()) == []


def test_a_program_that_forks_itself_anew_for_ever_does_not_grow() -> None:
    proc = Births()
    table = ProcessTable(proc)
    proc.parents[10] = 1
    table.refresh()
    for pid in range(11, 2000):
        proc.parents[pid] = pid - 1
        table.refresh()
        del proc.parents[pid - 1]
        table.refresh()
    process: Process | None = table._processes[1999]
    depth = 0
    while process is not None:
        process, depth = process.parent, depth + 1
    assert depth <= MAX_LINEAGE + 2


def a_rank(pid: int, job: str, *, has_page: bool = True, owner: str = "uid:1") -> FoundRank:
    process = Process(pid=pid, ppid=1, start_time=pid, comm="python")
    claim = RankClaim(rank=pid)
    return FoundRank(
        process=process,
        job=JobKey(job, owner),
        claim=claim,
        page=None,
        launch=LAUNCH,
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


def test_a_rank_whose_page_is_dear_to_find_costs_the_others_nothing() -> None:
    schedule = CheckSchedule()
    found: dict[int, float] = {}
    cheap = range(1000, 1008)
    for pid in [*range(200), *cheap]:
        process = Process(pid=pid, ppid=1, start_time=1, comm="python")
        candidate = Candidate(process=process, first_seen=0.0, claim=RankClaim(rank=0))
        schedule.add(candidate, 0.0, helper=False)
    for now in range(120):
        schedule.run(
            float(now),
            check=lambda each, at=now: (  # type: ignore[misc]
                found.setdefault(each.process.pid, at),
                min(4096, 64 * 4**each.checks) if each.process.pid < 1000 else 10,
            )[1],
            is_rank=lambda _: True,
        )
    assert all(found.get(pid, 999) < 60 for pid in cheap)


def test_a_report_that_a_tower_would_refuse_goes_without_its_longest_ranks() -> None:
    short = [
        RankVitals(job="good", rank=rank, pid=rank, start_time=1, found_age_s=1.0)
        for rank in range(8)
    ]
    long = [
        RankVitals(job="\U0001f600" * 256, rank=rank, pid=rank, start_time=1, wchan="w" * 256)
        for rank in range(1000)
    ]
    report = Report(
        version=1, node="n", agent_id="a", interval_s=1.0, ranks=(*long[:500], *short, *long[500:])
    )
    body = encode_report(report)
    assert len(body) <= MAX_REPORT_BYTES
    ranks = msgspec.json.decode(body, type=Report).ranks
    assert [rank.rank for rank in ranks if rank.job == "good"] == list(range(8))
    assert len(ranks) > 500


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


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("test.flood")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    yield logger
    logger.handlers.clear()


def test_a_sentence_that_is_said_again_and_again_is_counted(logger: logging.Logger) -> None:
    now = 0.0
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    handler.addFilter(LogLimit(lambda: now))
    logger.addHandler(handler)
    for second in range(1200):
        now = float(second)
        for _ in range(3):
            logger.warning("order %s is refused", f"\n{second}\x1b[2J")
    logger.info("something else")
    assert len(lines) <= BURST + 120 + 1
    assert lines[-1] == "something else"
    assert "more like it)" in lines[-2]
    assert all(line.isprintable() for line in lines)


def a_fake_process(tmp_path: Path, kind: str) -> Proc:
    """A process whose page lies on a file system of some kind."""
    page = tmp_path / "watchtower-heartbeat.1"
    page.write_bytes(b"x")
    (tmp_path / "proc/7/fd").mkdir(parents=True)
    (tmp_path / "proc/7/fdinfo").mkdir()
    (tmp_path / "proc/7/fd/3").symlink_to(page)
    (tmp_path / "proc/7/fdinfo/3").write_text("pos:\t0\nflags:\t02\nmnt_id:\t36\n")
    lines = f"35 1 98:0 / / rw - ext4 /dev/sda rw\n36 35 0:1 / /mnt rw master:1 - {kind} - rw\n"
    (tmp_path / "proc/7/mountinfo").write_text(lines)
    return Proc(str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "opened"),
    [
        ("tmpfs", 1),
        ("ext4", 1),
        ("nfs4", 0),
        ("fuse.sshfs", 0),
        ("lustre", 0),
        ("-", 0),
        ("overlay", 0),  # of a mount namespace whose owner is not known
    ],
)
def test_a_page_on_a_file_system_that_may_hang_is_not_even_opened(
    tmp_path: Path, kind: str, opened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = a_fake_process(tmp_path, kind)
    paths: list[str] = []
    really = os.open

    def count(path: str, flags: int, mode: int = 0o777) -> int:
        paths.append(path)
        return really(path, flags, mode)

    monkeypatch.setattr("agent.ranks.pages.os.open", count)
    assert find_page(proc, 7, 1).page is None
    assert sum("/fd/3" in path for path in paths) == opened
