"""The tower through whole stories: effects, restarts, races, a store that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tests.core.detection.scenes import JOB
from tests.tower.simulator import Simulation
from watchtower.tower.archive import StoreFailedError
from watchtower.wire.report import AgentLimits, EndingKind, Report
from watchtower.wire.verdict import Cause

Story = Callable[[Simulation], Awaitable[None]]


async def hang(sim: Simulation, rank: int = 2) -> None:
    """Ten steps, then a rank that fetches data for ever: until an incident is open."""
    await sim.step(10)
    await sim.report(6)
    await sim.dump(behind=rank)
    await sim.report(12)
    assert sim.status == "hung"


def test_a_hang_is_suspected_diagnosed_and_then_an_incident(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        assert sim.status == "suspect"
        assert sim.verdict.diagnosed_at is None
        await sim.dump(behind=2)
        await sim.report(1)
        assert sim.verdict.cause is Cause.DATALOADER_STALL
        assert [s.rank for s in sim.verdict.suspects] == [2]
        assert sim.verdict.waiting == "0-1,3"
        assert await sim.incidents() == []
        await sim.report(11)
        (incident,) = await sim.incidents()
        assert incident.verdict.incident == incident.id
        stored = await asyncio.wrap_future(sim.store.incident(incident.id))
        assert stored.case.ranks[2].dumps

    tell(story)


def test_a_tower_restarted_in_the_middle_of_a_hang_goes_on_with_the_same_incident(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        before = sim.verdict
        await sim.restart_tower()
        await sim.report(1)
        assert sim.verdict.incident == before.incident
        assert sim.verdict.cause is Cause.DATALOADER_STALL
        assert sim.verdict.generation == before.generation
        assert sim.live.watch.status.value == "hung"
        assert [s.rank for s in sim.verdict.suspects] == [2]
        assert sim.verdict.stalled_for_s == before.stalled_for_s + 1
        await sim.report(15)
        assert sim.verdict.cause is Cause.DATALOADER_STALL
        assert [i.id for i in await sim.incidents()] == [before.incident]
        await sim.step(3)
        assert [i.status.value for i in await sim.incidents()] == ["recovered"]

    tell(story)


def test_dumps_that_were_acknowledged_are_evidence_after_a_restart_too(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        await sim.dump(behind=2)
        await sim.restart_tower()
        await sim.report(1)
        assert sim.status == "suspect"
        assert sim.verdict.cause is Cause.DATALOADER_STALL
        assert sim.live.scene.dumps_have == 4
        assert sim.tower._orders.collect("n0", sim.world.now) == ()
        taken_at = [at for at, _ in sim.tower.fleet.jobs[JOB].generation.ranks[2].dumps]
        assert taken_at == pytest.approx([sim.world.now - 1] * 2)

    tell(story)


def test_dumps_that_come_before_the_first_report_are_evidence(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        await sim.restart_tower()
        await sim.dump(behind=2)
        await sim.report(1)
        assert sim.verdict.cause is Cause.DATALOADER_STALL

    tell(story)


def test_dumps_of_a_node_that_reports_late_are_evidence_when_it_does(tell):
    async def story(sim: Simulation) -> None:
        sim.world.silent.add("n1")
        await sim.step(10)
        await sim.report(6)
        await sim.dump(behind=2)
        assert 2 not in sim.tower.fleet.jobs[JOB].generation.ranks
        sim.world.silent.clear()
        await sim.report(2)
        assert sim.tower.fleet.jobs[JOB].generation.ranks[2].dumps

    tell(story)


def test_dumps_of_an_earlier_stall_are_not_read_back(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.dump(behind=2)
        await sim.step(3)
        await sim.restart_tower()
        await sim.report(6)
        assert sim.status == "suspect"
        assert sim.live.scene.dumps_have == 0
        assert sim.tower._orders.collect("n0", sim.world.now)

    tell(story)


def test_a_node_that_is_reported_late_after_a_restart_is_not_taken_for_missing(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        before = sim.verdict
        await sim.restart_tower()
        sim.world.silent.add("n1")
        await sim.report(5)
        assert sim.verdict.suspects == before.suspects
        assert sim.live.watch.diagnosis is None
        sim.world.silent.clear()
        await sim.report(6)
        assert [s.rank for s in sim.verdict.suspects] == [2]
        assert sim.live.watch.diagnosis is not None

    tell(story)


def test_towers_that_are_killed_while_ranks_come_back_forget_none_of_them(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        before = sim.verdict.incident
        for silent in ("n1", "n0", "n1", "n0"):
            await sim.restart_tower()
            sim.world.silent = {silent}
            await sim.report(1)
        sim.world.silent.clear()
        await sim.report(1)
        assert sim.live.generation == 1
        assert sim.verdict.incident == before
        assert len(await sim.incidents()) == 1

    tell(story)


def test_a_dead_rank_that_nobody_reports_after_a_restart_stays_the_culprit(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.end(3, EndingKind.SIGNAL, 9)
        await sim.report(20)
        assert sim.status == "hung"
        before = sim.verdict
        await sim.restart_tower()
        del sim.world.ranks[3]  # its agent was restarted too
        await sim.report(30)
        assert sim.live.watch.diagnosis is not None
        assert sim.verdict.cause is before.cause is Cause.PROCESS_DIED
        assert [s.rank for s in sim.verdict.suspects] == [3]
        assert sim.verdict.incident == before.incident

    tell(story)


def test_a_stall_in_a_phase_whose_pace_is_forgotten_has_not_recovered(tell):
    async def story(sim: Simulation) -> None:
        for rank in sim.world.ranks.values():
            rank.phase, rank.phase_at = "save", 0.0
        await hang(sim)
        await sim.restart_tower()
        await sim.report(20)
        assert sim.status == "hung"
        await sim.step(4)
        assert sim.status == "recovered"

    tell(story)


def test_the_end_of_a_job_is_told_once_through_a_restart(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.end(2, EndingKind.EXIT, 1)
        for rank in (0, 1, 3):
            sim.world.end(rank, EndingKind.SIGNAL, 15)
        await sim.report(4)
        assert len(await sim.incidents()) == 1
        for _ in range(2):
            await sim.restart_tower()
            await sim.report(5)
        assert sim.status == "ended"
        assert len(await sim.incidents()) == 1

    tell(story)


def test_a_job_that_died_while_the_tower_was_away_is_told(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.end(2, EndingKind.EXIT, 1)
        for rank in (0, 1, 3):
            sim.world.end(rank, EndingKind.SIGNAL, 15)
        sim.world.now += 60
        await sim.restart_tower()
        await sim.report(4)
        (incident,) = await sim.incidents()
        assert [s.rank for s in incident.verdict.suspects] == [2]

    tell(story)


def test_a_job_that_stepped_on_while_the_tower_was_away_has_recovered(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        await sim.restart_tower()
        await sim.step(3)
        assert sim.status == "recovered"
        assert [i.status.value for i in await sim.incidents()] == ["recovered"]

    tell(story)


def test_other_processes_under_the_same_name_are_another_generation_after_a_restart_too(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        await sim.restart_tower()
        sim.world.launch(pids_from=700)
        await sim.step(5)
        assert sim.live.generation == 2
        assert [i.status.value for i in await sim.incidents()] == ["ended"]

    tell(story)


def test_an_incident_whose_job_never_comes_back_is_given_up(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        await sim.restart_tower()
        sim.world.now += 700
        sim.tower.tick()
        assert [i.status.value for i in await sim.incidents()] == ["monitoring_lost"]

    tell(story)


def test_a_job_cancelled_while_it_is_suspect_opens_no_incident(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10, step_s=30)
        await sim.report(152)
        await sim.dump(behind=2)
        await sim.report(15)
        assert sim.status == "suspect"
        for rank in range(4):
            sim.world.end(rank, EndingKind.SIGNAL, 15)
        await sim.report(6)
        assert sim.status == "ended"
        assert await sim.incidents() == []

    tell(story)


def test_one_replaced_rank_leaves_no_rank_unwatched(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.end(3, EndingKind.SIGNAL, 9)
        await sim.report(1)
        fresh = replace(sim.world.ranks[3], pid=903, ended=None, beat_at=sim.world.now)
        sim.world.ranks[3] = fresh
        await sim.step(10)
        assert sim.live.generation == 2
        await sim.report(8)
        assert sim.status == "suspect"

    tell(story)


def test_a_diagnosis_that_fails_is_told_and_asked_for_again(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        await sim.dump(behind=2)
        record = sim.tower.fleet.jobs[JOB].generation.ranks[2]
        whole = record.dumps
        record.dumps = [(at, replace(dump, kernel=None)) for at, dump in whole]
        await sim.report(1)
        assert sim.verdict.missing_evidence == ("the diagnosis failed (AttributeError)",)
        assert sim.status == "suspect"
        record.dumps = whole
        await sim.report(6)
        assert sim.verdict.cause is Cause.DATALOADER_STALL

    tell(story)


def test_dumps_that_cannot_be_stored_are_refused_and_used_all_the_same(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        batch = sim.batch("n1", 1, behind=2)
        sim.store._thread.submit(lambda: sim.store._db.execute("DROP TABLE dumps")).result()
        with pytest.raises(StoreFailedError, match="no such table"):
            await sim.tower.take_dumps(batch)
        assert sim.tower.fleet.jobs[JOB].generation.ranks[2].dumps

    tell(story)


def test_orders_reach_every_node_that_has_not_dumped(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        assert sim.tower._orders.collect("n0", sim.world.now)
        assert sim.tower._orders.collect("n0", sim.world.now) == ()
        (order,) = sim.tower._orders.collect("n1", sim.world.now)
        assert order.job == JOB

    tell(story)


def test_a_job_nobody_reports_is_forgotten_after_hours(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        for hours in range(8):
            sim.world.now += 3600 * (hours > 0) + 20
            sim.tower.tick()
        assert sim.tower.live == {}
        assert sim.tower.fleet.nodes == {}

    tell(story)


def test_the_past_of_a_job_is_known_after_a_restart(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.restart_tower()
        await sim.report(1)
        assert sim.live.generation == 1
        assert sim.tower.fleet.jobs[JOB].generation.is_paced
        await sim.report(8)
        assert sim.status == "suspect"

    tell(story)


def test_a_node_whose_agent_sees_no_rank_for_want_of_rights_is_told_with_the_verdict(tell):
    blind = "sees ranks of user 7 only"

    async def story(sim: Simulation) -> None:
        for node, limits in (("blind", AgentLimits(process=blind)), ("empty", AgentLimits())):
            nothing = Report(version=1, node=node, agent_id=node, interval_s=1.0, limits=limits)
            sim.tower.take_report(nothing)
        sim.world.size = 6  # two ranks more than anybody reports
        await hang(sim)
        assert sim.verdict.missing_evidence == (f"blind: {blind}",)

    tell(story)
