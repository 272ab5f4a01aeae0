"""Limits of the fleet: a node that sends false reports gets only its share of memory and time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.batches import EMPTY_BATCH
from tests.diagnosis.builders import a_stack, as_sent, case_of
from watchtower.fleet import fleet as bounds
from watchtower.fleet.fleet import Fleet
from watchtower.jobs.attempt import MAX_RIVALS, MIN_MISSING
from watchtower.jobs.case_inputs import collect_case_inputs
from watchtower.jobs.detector import Detector
from watchtower.jobs.keeper import MIN_RETIRED, REFILL_S
from watchtower.jobs.pace import Pauses
from watchtower.policy import Policy
from watchtower.wire.bounds import MAX_WORLD_SIZE
from watchtower.wire.dumps import DumpBatch, KernelWait, RankDump, ThreadDump
from watchtower.wire.report import Beat, RankVitals, Report
from watchtower.wire.stacks import Stack, make_stack

HUNG = Beat(step=-1, age_s=500.0)


def vitals(job: str = "j", rank: int = 0, pid: int = 1, **more) -> RankVitals:
    return RankVitals(job=job, rank=rank, pid=pid, start_time=pid, beat=HUNG, **more)


def report(node: str, *ranks: RankVitals) -> Report:
    return Report(version=1, node=node, agent_id=node, interval_s=1.0, ranks=ranks)


def dumps(
    job: str, rank: int, pid: int, *stacks: Stack, node: str = "n", name: str = ""
) -> DumpBatch:
    threads = tuple(ThreadDump(name="t", digest=stack.digest) for stack in stacks)
    dump = RankDump(rank=rank, pid=pid, start_time=pid, kernel=KernelWait(), threads=threads)
    return replace(
        EMPTY_BATCH,
        id=name or f"{job}-{rank}-{node}",
        node=node,
        job=job,
        ranks=(dump,),
        stacks=stacks,
    )


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(Policy())


def count_ranks(fleet: Fleet) -> int:
    return sum(len(job.attempt.ranks) for job in fleet.jobs.values())


def count_unwatched(fleet: Fleet, node: str) -> int:
    return sum(each.count for each in fleet.nodes[node].unwatched)


def test_one_node_founds_a_share_of_all_jobs(fleet, monkeypatch):
    monkeypatch.setattr(bounds, "MAX_JOBS_PER_NODE", 3)
    fleet.take_report(report("liar", *(vitals(f"j{n}", pid=n) for n in range(5))), 0.0)
    assert len(fleet.jobs) == 3
    assert count_unwatched(fleet, "liar") == 2
    fleet.take_report(report("good", vitals("real")), 1.0)
    fleet.forget("j0")
    fleet.take_report(report("liar", vitals("j9", pid=9)), 2.0)
    assert {"real", "j9"} <= fleet.jobs.keys()


def test_ranks_are_counted_through_joins_restarts_and_ends(fleet, monkeypatch):
    monkeypatch.setattr(bounds, "MAX_RANKS", 4)
    fleet.take_report(report("n", vitals(rank=0, pid=1), vitals(rank=1, pid=2)), 0.0)
    fleet.take_report(report("n", vitals(rank=0, pid=3), vitals(rank=1, pid=4)), 1.0)
    assert fleet.jobs["j"].attempt.number == 2
    assert fleet.rank_count == count_ranks(fleet) == 2
    fleet.take_report(report("m", *(vitals("k", rank=n, pid=n) for n in range(5))), 2.0)
    assert fleet.rank_count == count_ranks(fleet) == 4
    assert count_unwatched(fleet, "m") == 3
    assert fleet.is_nearly_full
    fleet.take_report(report("l", vitals("late")), 3.0)
    assert "late" not in fleet.jobs
    fleet.forget("k")
    fleet.take_report(report("l", vitals("late")), 4.0)
    assert fleet.rank_count == count_ranks(fleet) == 3


def test_rivals_are_bounded(fleet):
    fleet.take_report(report("good", vitals()), 0.0)
    for node in range(3):
        claims = (vitals(pid=100 + n) for n in range(1000))
        fleet.take_report(report(f"liar-{node}", *claims), 1.0)
    attempt = fleet.jobs["j"].attempt
    assert len(attempt.rivals) == MAX_RIVALS
    assert attempt.ranks[0].key.node == "good"


def test_processes_of_earlier_attempts_are_bounded(fleet):
    for number in range(3 * MIN_RETIRED):
        fleet.take_report(report("n", vitals(pid=number + 1)), REFILL_S * number)
    assert fleet.jobs["j"].attempt.number == 3 * MIN_RETIRED
    assert len(fleet.jobs["j"].retired) == MIN_RETIRED


def test_the_memory_of_ended_jobs_is_bounded(fleet, monkeypatch):
    monkeypatch.setattr(bounds, "MAX_PAST", 10)
    for number in range(30):
        fleet.take_report(report("n", vitals(f"j{number}", pid=number + 1)), 0.0)
        fleet.forget(f"j{number}")
    assert list(fleet.past) == [f"j{number}" for number in range(20, 30)]


def test_a_claimed_world_size_costs_neither_time_nor_memory(fleet):
    fleet.take_report(
        report("n", vitals(rank=7, world_size=MAX_WORLD_SIZE, found_age_s=500.0)), 500.0
    )
    attempt, detector = fleet.jobs["j"].attempt, Detector(Policy())
    assert attempt.world_size == MAX_WORLD_SIZE
    stall = detector.judge(attempt, fleet.nodes, Pauses(), 500.0).stall
    assert len(stall.ranks) == MIN_MISSING + 1
    case = case_of(collect_case_inputs(attempt, fleet.nodes, detector, stall, None, 500.0))
    assert len(case.ranks) == MIN_MISSING + 1


def test_missing_ranks_of_a_real_job_are_all_named():
    fleet = Fleet(Policy())
    ranks = (vitals(rank=n, pid=n + 1, world_size=2048) for n in range(1000))
    fleet.take_report(report("n", *ranks), 0.0)
    assert fleet.jobs["j"].attempt.missing_ranks() == tuple(range(1000, 2048))


def test_only_bodies_with_dumps_of_the_senders_own_ranks_are_kept(fleet):
    fleet.take_report(report("n", vitals()), 0.0)
    attempt, stack = fleet.jobs["j"].attempt, a_stack("a train.py:1")
    fleet.take_dumps(as_sent(dumps("j", 0, 1, stack, node="liar")), 1.0)
    assert attempt.dumps_bytes == 0
    sent = as_sent(dumps("j", 0, 1, stack))
    fleet.take_dumps(sent, 1.0)
    assert attempt.dumps_bytes == len(sent.body)


def test_bodies_are_counted_as_long_as_a_rank_holds_them(fleet):
    fleet.take_report(report("n", vitals(), vitals(rank=1, pid=2)), 0.0)
    attempt, stack = fleet.jobs["j"].attempt, a_stack("a train.py:1")
    sent = [as_sent(dumps("j", n % 2, n % 2 + 1, stack, name=f"b{n:02}")) for n in range(20)]
    for number, each in enumerate(sent):
        fleet.take_dumps(each, number)
    assert attempt.dumps_bytes == sum(len(each.body) for each in sent[-4:])
    fleet.take_report(report("n", vitals(rank=1, pid=2), vitals(pid=7, found_age_s=0.0)), 30.0)
    attempt.drop_dumps(1 << 30)
    assert attempt.dumps_bytes == 0


def test_the_job_with_most_bytes_loses_its_dumps_when_there_are_too_many(fleet, monkeypatch):
    fleet.take_report(report("n", vitals("good"), vitals("bad", pid=2)), 0.0)
    frame = a_stack("f x.py:1").frames[0]
    few = as_sent(dumps("good", 0, 1, make_stack((frame,) * 100)))
    many = as_sent(dumps("bad", 0, 2, make_stack((frame,) * 500)))
    monkeypatch.setattr(bounds, "MAX_STORED_BYTES", len(many.body) + 2000)
    fleet.take_dumps(few, 1.0)
    fleet.take_dumps(many, 1.0)
    kept = {name: job.attempt.dumps_bytes for name, job in fleet.jobs.items()}
    assert kept == {"good": len(few.body), "bad": 0}
    assert fleet.jobs["bad"].attempt.ranks[0].dumps == []
