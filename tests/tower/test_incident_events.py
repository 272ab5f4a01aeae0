"""Events of incidents, as listeners receive them."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

from tests.tower.simulator import Simulation, hang
from watchtower.tower.incident_events import Change, IncidentEvent
from watchtower.tower.tower import LEFT_OPEN_S
from watchtower.wire.report import EndingKind
from watchtower.wire.verdict import Status

Tell = Callable[[Callable[[Simulation], Awaitable[None]]], None]


class Recording:
    """Records all events."""

    def __init__(self) -> None:
        self.events: list[IncidentEvent] = []

    def note(self, event: IncidentEvent) -> None:
        self.events.append(event)

    @property
    def changes(self) -> list[Change]:
        return [event.change for event in self.events]


class Failing:
    """Fails with every event."""

    def note(self, event: IncidentEvent) -> None:
        raise RuntimeError(event.incident.id)


async def listen(sim: Simulation) -> Recording:
    recording = Recording()
    sim.listeners = (Failing(), recording)
    await sim.restart_tower()
    return recording


def test_an_incident_is_opened_corrected_acknowledged_and_closed(tell: Tell) -> None:
    async def story(sim: Simulation) -> None:
        recording = await listen(sim)
        await hang(sim, rank=2)
        await sim.dump(behind=1)
        await sim.report(5)
        assert recording.changes[0] is Change.OPENED
        assert set(recording.changes[1:]) == {Change.UPDATED}
        corrected = recording.events[-1].incident
        assert [suspect.rank for suspect in corrected.verdict.suspects] == [1]
        await sim.tower.acks.ack(corrected.id, "ann", "")
        assert recording.changes[-1] is Change.ACKNOWLEDGED
        assert recording.events[-1].incident.ack is not None
        await sim.step(2)
        assert recording.changes[-1] is Change.CLOSED
        assert recording.events[-1].incident.status is Status.RECOVERED
        assert {event.incident.id for event in recording.events} == {corrected.id}

    tell(story)


def test_a_death_that_ends_the_job_is_one_event_of_a_closed_incident(tell: Tell) -> None:
    async def story(sim: Simulation) -> None:
        recording = await listen(sim)
        await sim.step(10)
        for rank in range(4):
            sim.world.end(rank, EndingKind.SIGNAL, int(signal.SIGSEGV))
        await sim.report(10)
        assert recording.changes == [Change.OPENED]
        assert recording.events[0].incident.closed_at is not None

    tell(story)


def test_an_incident_that_no_job_continues_after_a_restart_is_closed_once(tell: Tell) -> None:
    async def story(sim: Simulation) -> None:
        await hang(sim)
        recording = await listen(sim)
        sim.world.silent = {"n0", "n1"}
        await sim.report(LEFT_OPEN_S + 2)
        assert recording.changes == [Change.CLOSED]
        assert recording.events[0].incident.status is Status.MONITORING_LOST

    tell(story)


def test_a_restarted_tower_continues_an_incident_without_opening_it_again(tell: Tell) -> None:
    async def story(sim: Simulation) -> None:
        await hang(sim)
        recording = await listen(sim)
        await sim.report(20)
        assert Change.OPENED not in recording.changes
        await sim.step(3)
        assert recording.changes[-1] is Change.CLOSED

    tell(story)
