"""Two agents that report under one node's name. One of them may be an attacker with a token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.detection.scenes import JOB, World
from tests.core.detection.test_fleet import a_rank, a_report
from watchtower.core.fleet.fleet import Fleet
from watchtower.core.policy import Policy
from watchtower.wire.report import Beat, Ending, EndingKind, RankVitals

STUCK = Beat(step=1, age_s=500.0)


def ranks_of(world: World) -> dict[int, tuple[int, bool]]:
    gen = world.fleet.jobs[JOB].generation
    return {rank: (record.key.pid, record.is_live) for rank, record in gen.ranks.items()}


def intrude(world: World, *ranks: RankVitals, agent: str = "intruder") -> None:
    """Report under the name of a node that has another agent."""
    report = replace(a_report("n0", *ranks), agent_id=agent)
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
    assert world.gen.number == 1


def test_no_agent_ends_a_process_that_another_one_reports():
    """The attacker knows process id and start time, because every user of the node can see them."""
    world = World()
    world.step(8)
    rank = world.ranks[0]
    died = Ending(kind=EndingKind.SIGNAL, code=9, age_s=0.0)
    claim = replace(rank.vitals(world.size, world.now), ended=died, beat=STUCK)
    for _ in range(5):
        intrude(world, claim)
        assert world.gen.ranks[0].is_live
        assert world.gen.ranks[0].vitals.beat.step == rank.step
        world.step(1)


def test_an_agent_that_stops_gives_up_its_ranks_to_the_next_one():
    fleet = Fleet(Policy())
    report = replace(a_report("n0", a_rank(0, 10)), interval_s=6.0)
    fleet.take_report(report, 0.0)
    fleet.take_report(replace(report, stopping=True), 2.0)
    stuck = replace(a_report("n0", a_rank(0, 10, beat=STUCK)), agent_id="next", interval_s=6.0)
    fleet.take_report(stuck, 3.0)
    assert fleet.jobs[JOB].generation.ranks[0].vitals.beat == STUCK


def test_no_agent_gives_up_the_ranks_of_another_one():
    fleet = Fleet(Policy())
    report = replace(a_report("n0", a_rank(0, 10)), interval_s=6.0)
    fleet.take_report(report, 0.0)
    other = replace(a_report("n0", a_rank(0, 10, beat=STUCK)), agent_id="intruder")
    fleet.take_report(replace(other, stopping=True), 1.0)
    fleet.take_report(other, 2.0)
    assert fleet.jobs[JOB].generation.ranks[0].vitals.beat is None


def test_an_agent_that_was_restarted_has_its_ranks_again():
    world = World(per_node=4)
    world.step(8)
    world.now += world.policy.vanish_s
    vitals = [rank.vitals(world.size, world.now) for rank in world.ranks.values()]
    restarted = [replace(each, beat=replace(each.beat, step=99)) for each in vitals]
    intrude(world, *restarted, agent="restarted")
    assert {record.vitals.beat.step for record in world.gen.ranks.values()} == {99}
