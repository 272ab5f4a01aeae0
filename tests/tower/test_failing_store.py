"""A full disk: no dump is acknowledged, and other data stay in memory and are written later."""

from __future__ import annotations

import asyncio
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.jobs.scenes import JOB
from tests.tower.simulator import Simulation
from watchtower.incidents.incident_filter import IncidentFilter
from watchtower.jobs.pace import Pause
from watchtower.store.values import read_case
from watchtower.tower.health import check_health
from watchtower.tower.store_writer import StoreFailedError
from watchtower.tower.stored_incidents import get_incident, list_incidents
from watchtower.views.people import Subject
from watchtower.wire.verdict import Cause


@contextmanager
def no_room() -> Iterator[None]:
    """Let the kernel refuse every write of this process to a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def until(sim: Simulation, is_so: Callable[[], bool]) -> None:
    """Wait in real time until `is_so()`, because the writer thread is a real thread."""
    pause_s = 0.01
    for _ in range(150):
        if is_so():
            return
        await sim.report(1)
        await asyncio.sleep(pause_s)
        pause_s = min(0.5, 1.05 * pause_s)  # altogether half a minute
    raise AssertionError("not within 150 s of the simulation")


async def hang_without_a_store(sim: Simulation) -> None:
    """Advance from the last step to an incident."""
    await sim.report(6)
    for node in ("n0", "n1"):
        with pytest.raises(StoreFailedError, match="the dumps could not be stored"):
            await sim.take(sim.batch(node, 1, behind=2))
    await sim.report(12)


def test_a_hang_is_found_and_reported_while_the_disk_is_full(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        with no_room():
            await hang_without_a_store(sim)
            assert sim.status == "hung"
            assert sim.verdict.cause is Cause.DATALOADER_STALL
            health = check_health(sim.tower)
            assert health.ready
            assert health.store.startswith("fails since 2023-11-14T")
            (listed,) = (await list_incidents(sim.tower, IncidentFilter(job=JOB), 10)).items
            assert listed.id == sim.verdict.incident
            assert (await get_incident(sim.tower, listed.id)).stacks
            assert await sim.incidents() == []

    tell(story)


def test_an_incident_is_written_when_there_is_room_again(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        with no_room():
            await hang_without_a_store(sim)
        ident = sim.verdict.incident
        await until(sim, lambda: check_health(sim.tower).store == "works")
        assert [one.id for one in await sim.incidents()] == [ident]
        stored = await asyncio.wrap_future(sim.store.incident(ident))
        assert read_case(stored).ranks[2].dumps
        await sim.restart_tower()
        await sim.report(1)
        assert sim.verdict.incident == ident
        await sim.take(sim.batch("n0", 1, behind=2))

    tell(story)


def test_an_incident_that_came_and_went_meanwhile_is_written_as_closed(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        with no_room():
            await hang_without_a_store(sim)
            await sim.step(4)
        await until(sim, lambda: not sim.tower.store_writer.unsaved(JOB))
        (incident,) = await sim.incidents()
        assert incident.status.value == "recovered"
        stored = await asyncio.wrap_future(sim.store.incident(incident.id))
        assert stored.evidence is not None

    tell(story)


def test_a_silence_that_cannot_be_stored_is_refused(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(3)
        with no_room(), pytest.raises(StoreFailedError, match="the silence could not be stored"):
            await sim.tower.silences.add(Subject(job=JOB), 60, "x" * 1000)
        assert sim.tower.silences.all() == []

    tell(story)


def test_what_waits_for_the_store_can_be_read_while_it_hangs(tell, monkeypatch):
    monkeypatch.setattr("watchtower.tower.store_writer.READ_S", 0.1)

    async def story(sim: Simulation) -> None:
        await sim.step(10)
        with no_room():
            await hang_without_a_store(sim)
        ident = sim.verdict.incident
        gate = threading.Event()
        sim.store._thread.submit(gate.wait)
        try:
            assert (await get_incident(sim.tower, ident)).stacks
            page = await list_incidents(sim.tower, IncidentFilter(job=JOB), 10)
            assert [one.id for one in page.items] == [ident]
            with pytest.raises(StoreFailedError, match="could not be read"):
                await get_incident(sim.tower, "another")
            with pytest.raises(StoreFailedError, match="could not be read"):
                await list_incidents(sim.tower, IncidentFilter(job="another"), 10)
        finally:
            gate.set()

    tell(story)


def test_a_pause_learned_while_the_store_fails_is_kept_when_it_works_again(tell):
    pause = Pause(phase="", frame_class="user", length_s=40.0)

    async def story(sim: Simulation) -> None:
        await sim.step(10)
        with no_room():
            sim.live.watch.pauses.learn(pause)
            sim.tower.store_writer.save_pause(JOB, pause)
            await until(sim, lambda: check_health(sim.tower).store != "works")
        await until(sim, lambda: check_health(sim.tower).store == "works")
        await sim.step(2)
        await sim.restart_tower()
        await sim.report(1)
        assert pause in sim.live.watch.pauses.all()

    tell(story)


def test_a_store_that_hangs_is_reported_and_gets_no_more_work(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await asyncio.wrap_future(sim.store.check())  # what was asked for before is written
        gate = threading.Event()
        sim.store._thread.submit(gate.wait)
        sim.tower.store_writer._others._patience_s = 0.05
        sim.tower.store_writer.fade_pauses(1.0)
        try:
            await asyncio.sleep(0.1)
            await sim.step(1)
            assert "has not answered for" in check_health(sim.tower).store
            for number in range(100):
                sim.tower.store_writer.save_pause(
                    JOB, Pause(phase=f"p{number}", frame_class="", length_s=9)
                )
            assert len(sim.store._thread._work) < 10
        finally:
            gate.set()
        await until(sim, lambda: check_health(sim.tower).store == "works")

    tell(story)


def test_a_tower_that_starts_on_a_full_disk_watches_and_knows_its_open_incident(tell, caplog):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        await sim.dump(behind=2)
        await sim.report(12)
        ident = sim.verdict.incident
        assert ident
        await sim.close()
        with no_room():
            sim.start()
            health = check_health(sim.tower)
            assert health.ready
            assert health.store.startswith("fails since")
            await sim.report(3)
            assert (sim.status, sim.verdict.incident) == ("hung", ident)
            with pytest.raises(StoreFailedError):
                await sim.take(sim.batch("n0", 1, behind=2))
        await until(sim, lambda: check_health(sim.tower).store == "works")
        await sim.take(sim.batch("n0", 1, behind=2))
        assert [one.id for one in await sim.incidents()] == [ident]

    tell(story)
    assert "the store fails" in caplog.text


def test_incidents_that_could_not_be_stored_are_logged_at_the_end(tell, caplog):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        with no_room():
            await hang_without_a_store(sim)
            ident = sim.verdict.incident
            await sim.close()
            sim.tower.store_writer.report_lost()
        assert f"lost because the store could not write them: incident {ident} (job {JOB})" in (
            caplog.text
        )
        caplog.clear()
        sim.start()

    tell(story)


def test_stored_incidents_are_not_reported_as_lost(tell, caplog):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        with no_room():
            await hang_without_a_store(sim)
        await sim.close()
        sim.tower.store_writer.report_lost()
        assert "lost" not in caplog.text
        sim.start()

    tell(story)


def test_a_file_that_was_removed_under_the_tower_is_noticed_and_nothing_is_acknowledged(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(3)
        path = sim.store._path
        away = path.rename(path.with_name("away"))
        await until(sim, lambda: "was removed" in check_health(sim.tower).store)
        with pytest.raises(StoreFailedError, match="the silence could not be stored"):
            await sim.tower.silences.add(Subject(job=JOB), 60, "")
        with pytest.raises(StoreFailedError, match="the dumps could not be stored"):
            await sim.take(sim.batch("n0", 1, behind=2))
        assert not path.exists()
        away.rename(path)
        await until(sim, lambda: check_health(sim.tower).store == "works")
        await sim.tower.silences.add(Subject(job=JOB), 60, "")

    tell(story)
