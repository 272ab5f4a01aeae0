"""Launches that have ended: their ranks are of no other job, and they cost no time and memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fleet.launch_scenes import (
    A1,
    A2,
    CONFIRMED,
    A,
    B,
    Sim,
    processes,
    without_rendezvous,
)
from watchtower.fleet.fleet import Fleet
from watchtower.fleet.nodes import NodeRecord
from watchtower.policy import Policy


@pytest.fixture
def sim() -> Sim:
    return Sim(Fleet(Policy()))


LARGER = replace(B, ranks=tuple(range(8)), world=8)
ELSEWHERE = replace(B, ranks=(4, 5, 6, 7), world=4)

ENDED_STARTS = {
    "more ranks": LARGER,
    "more ranks, no rendezvous is known": without_rendezvous(LARGER),
    "another job of the scheduler": replace(ELSEWHERE, scheduler="slurm 2"),
    "another run": replace(ELSEWHERE, run="2"),
    "another rendezvous": ELSEWHERE,
}


@pytest.mark.parametrize("seconds", [0, 3])
@pytest.mark.parametrize("name", ENDED_STARTS)
def test_the_dead_ranks_of_a_start_that_failed_are_not_of_the_job_that_lives(sim, name, seconds):
    """It ended between two reports, or before it was known to be a job of its own."""
    first = replace(A, scheduler="slurm 1", run="1")
    sim.run(first, seconds=3)
    if "more" in name:
        sim.run(first, ENDED_STARTS[name], seconds=seconds)
    sim.run(first, replace(ENDED_STARTS[name], ended=True), seconds=3)
    attempt = sim.fleet.jobs["mine"].attempt
    assert sim.jobs() == {"mine": processes(first)}
    assert (attempt.world_size, len(attempt.rivals)) == (4, 0)


def test_a_restarted_twin_that_dies_before_its_first_report_is_an_attempt_of_the_twin(sim):
    sim.run(A, B, seconds=CONFIRMED)
    sim.run(A, replace(B, ended=True))
    again = replace(B, ranks=tuple(range(8)), world=8, round=1, at="127.0.0.1:7", ended=True)
    vitals = [replace(each, found_age_s=0.0) for each in again.vitals()]
    vitals = [replace(each, ended=replace(each.ended, age_s=0.0)) for each in vitals]
    report = sim.make_report(A, replace(B, ended=True), again)
    sim.fleet.take_report(
        replace(report, ranks=(*A.vitals(), *replace(B, ended=True).vitals(), *vitals)), sim.now
    )
    assert sim.jobs()["mine"] == processes(A)
    assert sim.jobs()["mine~2"] >= processes(again)


def test_ended_processes_without_a_rank_do_not_make_reports_slow(sim):
    again = replace(A, pid=5000)
    sim.run(A, seconds=2)
    sim.run(replace(A, ended=True), again, seconds=3)
    node = sim.fleet.nodes["n0"]
    assert node.is_settled
    assert node.over == {(each.pid, each.start_time) for each in A.vitals()}
    report = sim.make_report(replace(A, ended=True), again)
    held = sim.fleet.placing.find_held(report, node, node)
    assert held is not None
    assert [each.pid for each in held] == [each.pid for each in again.vitals()]
    replaced = replace(report, agent_id="another")
    assert NodeRecord.of(replaced, node, sim.now, 10.0).find_over(replaced, node) == set()


def test_a_second_claim_is_forgotten_as_soon_as_it_ends(sim):
    beside = replace(A, pid=9000, ranks=(2,), launched=False, beat=None, at="", network="")
    sim.run(A, beside, seconds=3)
    assert len(sim.fleet.jobs["mine"].attempt.rivals) == 1
    sim.run(A)
    assert sim.fleet.jobs["mine"].attempt.rivals == {}
    assert sim.fleet.nodes["n0"].unwatched == ()


def test_a_node_stores_no_records_of_an_attempt_that_is_over(sim):
    sim.run(A1, A2, seconds=3)
    node = sim.fleet.nodes["n1"]
    assert [(label, record.key.pid) for label, record in node.held] == [
        ("mine", each.pid) for each in A2.vitals()
    ]
    again = replace(A, pid=5000)
    for _ in range(int(Policy().silence_s) + CONFIRMED):
        sim.run(again)
        sim.fleet.drop_old(sim.now)
    assert sim.jobs() == {"mine": processes(again)}
    assert sim.fleet.nodes["n1"] is node
    assert (node.held, node.over, node.is_settled) == ((), set(), False)
