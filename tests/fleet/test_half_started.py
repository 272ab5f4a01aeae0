"""Half-started jobs that hold each other's places, and those that only wait."""

import pytest

from tests.fleet.test_launchers import LAUNCHER, report
from watchtower.evidence.case import PlaceHolder
from watchtower.fleet.fleet import Fleet
from watchtower.fleet.half_started import HalfStarted, find_deadlocks, find_holders
from watchtower.policy import Policy
from watchtower.wire.observations import Observation
from watchtower.wire.report import Beat, RankVitals, Report, WaitingLauncher


def half(job, holds, lacks=1, missing=""):
    return HalfStarted(
        job=job,
        owner="",
        holds=frozenset(holds.split()),
        lacks=lacks,
        missing=frozenset(missing.split()),
        since=0.0,
    )


def groups(*jobs, free=""):
    found = find_deadlocks(jobs, frozenset(free.split()))
    return [[each.job for each in group] for group in found]


def test_two_jobs_that_hold_what_the_other_lacks():
    assert groups(half("a", "n1"), half("b", "n2")) == [["a", "b"]]
    assert groups(half("a", "n1", 1, "n2"), half("b", "n2", 1, "n1")) == [["a", "b"]]


def test_a_cycle_of_three():
    jobs = [half("a", "n1", 1, "n2"), half("b", "n2", 1, "n3"), half("c", "n3", 1, "n1")]
    assert groups(*jobs) == [["a", "b", "c"]]


@pytest.mark.parametrize(
    ("jobs", "free"),
    [
        pytest.param([half("a", "n1"), half("b", "n2")], "n3", id="a node is free"),
        pytest.param([half("a", "n1"), half("b", "n1")], "", id="both wait on one node"),
        pytest.param(
            [half("a", "n1", 1, "n3"), half("b", "n2", 1, "n1")], "", id="one waits for a third"
        ),
        pytest.param([half("a", "n1", 4), half("b", "n2", 4)], "", id="others hold more"),
        pytest.param(
            [half("a", "n1", 1, "n2"), half("b", "n2", 1, "n1")], "n1 n2", id="both have room"
        ),
    ],
)
def test_jobs_that_only_wait(jobs, free):
    assert groups(*jobs, free=free) == []


POLICY = Policy(startup_grace_s=60.0)
NOW = 1000.0


def launcher(job, waits_s=50.0, **values):
    return WaitingLauncher(
        job=job, launcher="torchrun", pid=7, start_time=1, waits_s=waits_s, nodes=2, **values
    )


def holders(fleet, job="a"):
    return find_holders(job, fleet.jobs, fleet.nodes, fleet.detector, NOW)


def test_launchers_of_two_jobs_that_agents_report():
    fleet = Fleet(POLICY)
    report(fleet, NOW, launcher("a"), node="n1")
    report(fleet, NOW, launcher("b"), node="n2")
    assert holders(fleet) == (PlaceHolder(job="b", nodes=("n2",), lacks=1),)
    report(fleet, NOW, node="n3")
    assert holders(fleet) == (), "n3 is free"


def test_a_job_that_may_still_be_starting_holds_nothing():
    fleet = Fleet(POLICY)
    report(fleet, NOW, launcher("a"), node="n1")
    report(fleet, NOW, launcher("b", waits_s=5.0), node="n2")
    assert holders(fleet) == ()


def a_rank(job, step=-1):
    beat = Beat(step=step, age_s=1.0)
    return RankVitals(job=job, rank=0, pid=9, start_time=1, world_size=2, beat=beat)


def with_ranks(step):
    fleet = Fleet(POLICY)
    for now in (NOW - 50, NOW):
        report(fleet, now, ranks=[a_rank("a")], node="n1")
        report(fleet, now, ranks=[a_rank("b", step)], node="n2")
    return fleet


def test_ranks_that_wait_for_others_hold_places_too():
    assert holders(with_ranks(-1)) == (PlaceHolder(job="b", nodes=("n2",), lacks=1),)
    assert holders(with_ranks(3)) == (), "job b trains"


def gpu(number, pid=None):
    subject = f"pci:0000:0{number}:00"
    return Observation(source="gpu", name="gpu_pattern.idle", subject=subject, pid=pid, age_s=1.0)


@pytest.mark.parametrize(("processes", "is_held"), [(0, True), (2, True), (1, False)])
def test_a_node_with_an_unused_gpu_has_room(processes, is_held):
    fleet = Fleet(POLICY)
    for job, node in (("a", "n1"), ("b", "n2")):
        sent = Report(
            version=1,
            node=node,
            agent_id=node,
            interval_s=1.0,
            waiting=(launcher(job, processes=processes),),
            observations=(gpu(1), gpu(2)),
        )
        fleet.take_report(sent, NOW)
    assert bool(holders(fleet)) is is_held


def test_a_node_without_gpus_is_no_room_for_jobs_on_gpus():
    fleet = Fleet(POLICY)
    for job, node in (("a", "n1"), ("b", "n2"), ("", "login")):
        sent = Report(
            version=1,
            node=node,
            agent_id=node,
            interval_s=1.0,
            waiting=(launcher(job),) if job else (),
            observations=(gpu(1), gpu(2)) if job else (),
        )
        fleet.take_report(sent, NOW)
    assert holders(fleet) != ()


def test_a_job_without_launchers_of_others_has_no_holders():
    fleet = Fleet(POLICY)
    report(fleet, NOW, LAUNCHER)
    assert find_holders(LAUNCHER.job, fleet.jobs, fleet.nodes, fleet.detector, NOW) == ()
