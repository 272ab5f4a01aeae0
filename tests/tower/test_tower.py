"""The tower through whole stories: effects, restarts, races, a store that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.core.detection.scenes import JOB, World
from tests.tower.simulator import Simulation
from watchtower.tower.archive import StoreFailedError
from watchtower.wire.report import EndingKind
from watchtower.wire.verdict import Cause

Story = Callable[[Simulation], Awaitable[None]]


@pytest.fixture
def tell(tmp_path: Path):
    """Run a story; what the tower started is ended afterwards."""

    def run(story: Story, world: World | None = None) -> None:
        async def whole() -> None:
            simulation = Simulation(tmp_path / "watchtower.db", world)
            try:
                await story(simulation)
            finally:
                await simulation.close()

        asyncio.run(whole())

    return run


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


def test_a_node_that_vanishes_with_its_ranks_is_named_and_then_an_incident(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.silent.add("n1")
        await sim.report(6)
        await sim.dump(behind=-1, nodes=("n0",))
        await sim.report(3)
        assert (sim.status, sim.verdict.cause) == ("suspect", Cause.NODE_LOST)
        assert [s.rank for s in sim.verdict.suspects] == [2, 3]
        await sim.report(12)
        (incident,) = await sim.incidents()
        assert incident.verdict.cause is Cause.NODE_LOST

    tell(story)


def test_a_node_lost_whose_peers_die_of_it_is_told_at_the_end(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.silent.add("n1")
        sim.world.end(0, EndingKind.SIGNAL, 6)
        sim.world.end(1, EndingKind.SIGNAL, 15)
        await sim.report(14)
        assert sim.status == "ended"
        (incident,) = await sim.incidents()
        assert incident.verdict.cause is not Cause.UNKNOWN

    tell(story)


def test_an_agent_that_dies_alone_is_lost_monitoring_and_no_incident(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.silent.add("n1")
        await sim.step(30)
        assert sim.status == "monitoring_lost"
        assert await sim.incidents() == []
        sim.world.silent.clear()
        await sim.step(3)
        assert sim.status == "healthy"

    tell(story)


def test_a_slow_job_is_looked_at_until_its_straggler_is_known(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(12)
        await sim.step(4, step_s=3.0)
        assert (sim.status, sim.verdict.cause) == ("slow", Cause.JOB_SLOW)
        for _ in range(6):
            await sim.dump(behind=2)
            await sim.step(3, step_s=3.0)
        assert (sim.status, sim.verdict.cause) == ("slow", Cause.STRAGGLER)
        assert [s.rank for s in sim.verdict.suspects] == [2]
        assert (sim.verdict.incident, sim.verdict.stalled_for_s) == (None, 0.0)
        await sim.step(12)
        assert (sim.status, sim.verdict.cause) == ("healthy", None)
        assert await sim.incidents() == []

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
        await sim.dump(behind=2)
        await sim.report(15)
        assert sim.live.watch.status.value == "hung"
        assert [i.id for i in await sim.incidents()] == [before.incident]
        await sim.step(3)
        assert [i.status.value for i in await sim.incidents()] == ["recovered"]

    tell(story)


def test_a_job_that_stepped_on_while_the_tower_was_away_has_recovered(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        await sim.restart_tower()
        await sim.step(3)
        assert sim.status == "healthy"
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
        sim.store._thread.submit(sim.store._db.execute, "DROP TABLE dumps").result()
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
