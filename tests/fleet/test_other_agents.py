"""Two agents that report under one node's name. One of them may be an attacker with a token."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.builders import as_sent, case_of
from tests.fleet.test_fleet import a_rank, a_report
from tests.jobs.scenes import JOB, World
from tests.properties import examples
from tests.synthesis.faults import FAULTS, imagine
from tests.synthesis.layout import Layout
from tests.synthesis.messages import launch, write_batches, write_reports
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence.case import Case
from watchtower.fleet.fleet import Fleet
from watchtower.jobs.agents import find_last_reports
from watchtower.jobs.case_inputs import collect_case_inputs
from watchtower.jobs.condition import Stall, Why
from watchtower.jobs.detector import ConditionKind, Detector
from watchtower.policy import Policy
from watchtower.wire.report import Beat, Ending, EndingKind, ProcessId, RankVitals

STUCK = Beat(step=1, age_s=500.0)


def ranks_of(world: World) -> dict[int, tuple[int, bool]]:
    attempt = world.fleet.jobs[JOB].attempt
    return {rank: (record.key.pid, record.is_live) for rank, record in attempt.ranks.items()}


def intrude(
    world: World,
    *ranks: RankVitals,
    agent: str = "intruder",
    boot: str = "",
    gone: tuple[ProcessId, ...] = (),
) -> None:
    """Report under the name of a node that has another agent."""
    report = replace(a_report("n0", *ranks), agent_id=agent, boot=boot, gone=gone)
    world.fleet.take_report(report, world.now + 0.1)


@pytest.mark.parametrize("launched", [False, True])
@pytest.mark.parametrize("beat", [None, STUCK])
def test_no_agent_takes_a_rank_from_another_one_under_its_node_s_name(launched, beat):
    world = World()
    for rank in world.ranks.values():
        rank.launched = True
    world.step(8)
    before = ranks_of(world)
    for pid in range(700, 720):
        claim = replace(a_rank(0, pid), job=JOB, launched=launched, beat=beat)
        intrude(world, claim)
        world.step(1)
    assert ranks_of(world) == before
    assert world.attempt.number == 1


def test_no_agent_ends_a_process_that_another_one_reports():
    """The attacker knows process id and start time, because every user of the node can see them."""
    world = World()
    world.step(8)
    rank = world.ranks[0]
    died = Ending(kind=EndingKind.SIGNAL, code=9, age_s=0.0)
    claim = replace(rank.vitals(world.size, world.now), ended=died, beat=STUCK)
    for _ in range(5):
        intrude(world, claim)
        assert world.attempt.ranks[0].is_live
        assert world.attempt.ranks[0].vitals.beat.step == rank.step
        world.step(1)


def test_an_agent_that_stops_gives_up_its_ranks_to_the_next_one():
    fleet = Fleet(Policy())
    report = replace(a_report("n0", a_rank(0, 10)), interval_s=6.0)
    fleet.take_report(report, 0.0)
    fleet.take_report(replace(report, stopping=True), 2.0)
    stuck = replace(a_report("n0", a_rank(0, 10, beat=STUCK)), agent_id="next", interval_s=6.0)
    fleet.take_report(stuck, 3.0)
    assert fleet.jobs[JOB].attempt.ranks[0].vitals.beat == STUCK


def test_no_agent_gives_up_the_ranks_of_another_one():
    fleet = Fleet(Policy())
    report = replace(a_report("n0", a_rank(0, 10)), interval_s=6.0)
    fleet.take_report(report, 0.0)
    other = replace(a_report("n0", a_rank(0, 10, beat=STUCK)), agent_id="intruder")
    fleet.take_report(replace(other, stopping=True), 1.0)
    fleet.take_report(other, 2.0)
    assert fleet.jobs[JOB].attempt.ranks[0].vitals.beat is None


def test_an_agent_that_was_restarted_has_its_ranks_again():
    world = World(per_node=4)
    world.step(8)
    world.now += world.policy.vanish_s
    vitals = [rank.vitals(world.size, world.now) for rank in world.ranks.values()]
    restarted = [replace(each, beat=replace(each.beat, step=99)) for each in vitals]
    intrude(world, *restarted, agent="restarted", boot="boot of n0")
    assert {record.vitals.beat.step for record in world.attempt.ranks.values()} == {99}


def processes_of(world: World, node: str) -> tuple[ProcessId, ...]:
    ranks = [rank for rank in world.ranks.values() if rank.node == node]
    return tuple(ProcessId(pid=rank.pid, start_time=rank.pid * 10) for rank in ranks)


BOOTS = pytest.mark.parametrize("boot", ["", "boot of another machine"])


@BOOTS
def test_an_agent_of_another_boot_ends_no_rank_of_a_silent_node(boot):
    world = World()
    world.step(8)
    world.silent = {"n0"}
    for _ in range(60):
        intrude(world, boot=boot, gone=processes_of(world, "n0"))
        assert world.fleet.nodes["n0"].missing == ()
        world.step(1)
    assert all(is_live for _, is_live in ranks_of(world).values())


@BOOTS
def test_a_node_stays_silent_although_an_agent_of_another_boot_reports_under_its_name(boot):
    world = World()
    world.step(8)
    world.silent = {"n0"}
    for _ in range(60):
        intrude(world, boot=boot)
        world.report(1)
    condition = world.detector.judge(
        world.attempt, world.fleet.nodes, world.pauses, world.now + 0.2
    )
    assert condition.kind in (ConditionKind.STALLED, ConditionKind.LOST)
    lost = [record for record in world.attempt.live() if record.key.node == "n0"]
    last = find_last_reports(lost, world.fleet.nodes)["n0"]
    assert world.detector.is_silent(last, world.now)
    assert world.now - last.seen_at >= 60


@BOOTS
def test_reports_of_another_boot_neither_hide_nor_silence_a_node_that_reports(boot):
    world = World()
    for _ in range(60):
        condition = world.step(1)
        intrude(world, boot=boot, gone=processes_of(world, "n0"))
        condition = world.detector.judge(
            world.attempt, world.fleet.nodes, world.pauses, world.now + 0.2
        )
    assert condition.kind is ConditionKind.STEPPING
    assert all(is_live for _, is_live in ranks_of(world).values())


def test_reports_of_another_boot_hide_no_death_from_a_restarted_agent():
    """The next agent of the node is asked, although another one reports between its reports."""
    world = World()
    world.step(8)
    intrude(world, boot="elsewhere")
    world.now += 5.0
    alive = [rank.vitals(world.size, world.now) for rank in (world.ranks[1],)]
    asked: tuple[ProcessId, ...] = ()
    for _ in range(3):
        intrude(world, *alive, agent="next", boot="boot of n0", gone=asked)
        asked = world.fleet.nodes["n0"].missing
        intrude(world, boot="elsewhere")
        world.now += 1.0
    assert ranks_of(world)[0] == (100, False)


def test_an_agent_that_does_not_know_its_boot_follows_when_the_agent_is_silent():
    world = World()
    world.step(8)
    vitals = [r.vitals(world.size, world.now) for r in world.ranks.values() if r.node == "n0"]
    for seconds, step in ((5, world.ranks[0].step), (15, 99)):
        world.now += seconds
        intrude(world, *(replace(v, beat=replace(v.beat, step=99)) for v in vitals), agent="old")
        assert world.attempt.ranks[0].vitals.beat.step == step


ONE, OTHER = Layout(tensor=2, data=4), Layout(data=3, pipeline=3)
STOPS = [fault for fault in FAULTS if fault.spoil is None]
NOW = 1000.0


def collect(cases: list[Case], order: random.Random) -> dict[str, Case]:
    """Send the agents' messages to a fleet in this order. Returns the case of each job."""
    policy = Policy()
    fleet, detector = Fleet(policy), Detector(policy)
    for report in write_reports(cases):
        fleet.take_report(report, NOW)
    batches = [
        batch for case in cases for number in (1, 2) for batch in write_batches(case, number)
    ]
    order.shuffle(batches)
    for batch in batches:
        fleet.take_dumps(as_sent(batch), NOW + 1.0)
    made = {}
    for name, job in fleet.jobs.items():
        stall = Stall(why=Why.OVERDUE, since=NOW - 9.0, ranks=frozenset())
        attempt = job.attempt
        made[name] = case_of(
            collect_case_inputs(attempt, fleet.nodes, detector, stall, None, NOW + 1.0)
        )
    return made


@examples(30)
@given(st.sampled_from(STOPS), st.sampled_from(STOPS), st.integers(0, 7), st.integers(0, 2**32))
def test_a_case_is_the_same_whether_or_not_another_job_shares_its_nodes(one, other, rank, seed):
    first = launch(imagine(ONE, one, rank).case, "one", 1000)
    second = launch(imagine(OTHER, other, rank).case, "other", 5000)
    order = random.Random(seed)
    together = collect([first, second], order)
    assert together["one"] == collect([first], order)["one"]
    assert together["other"] == collect([second], order)["other"]


@examples(30)
@given(st.sampled_from(STOPS), st.sampled_from(STOPS), st.integers(0, 7), st.integers(0, 2**32))
def test_each_of_two_jobs_gets_a_verdict_on_its_own_fault(one, other, rank, seed):
    truths = {"one": imagine(ONE, one, rank), "other": imagine(OTHER, other, rank)}
    cases = [
        launch(truth.case, job, pids)
        for (job, truth), pids in zip(truths.items(), (1000, 5000), strict=True)
    ]
    for job, case in collect(cases, random.Random(seed)).items():
        diagnosis = diagnose(case)
        assert [suspect.rank for suspect in diagnosis.suspects] == [rank]
        assert diagnosis.cause.value in truths[job].causes


def test_what_the_agents_send_gives_the_case_they_were_imagined_from():
    case = launch(imagine(ONE, FAULTS[0], 5).case, "one", 1000)
    made = collect([case], random.Random(0))["one"]
    assert {stack.digest for stack in made.stacks} == {stack.digest for stack in case.stacks}
    assert {log.digest for log in made.group_logs} == {log.digest for log in case.group_logs}
    assert set(made.groups) == set(case.groups)
    assert [item.dumps for item in made.ranks] == [item.dumps for item in case.ranks]
    aged = [replace(item, beat=case.ranks[0].beat) for item in made.ranks]
    assert aged == list(case.ranks)
