"""A notifier with a real store and a real receiver, for stories in real time."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tests.alerts.receivers import Receiver
from watchtower.alerts.destination import Destination
from watchtower.alerts.destinations.webhook import Webhook
from watchtower.alerts.labels import AlertLinks
from watchtower.alerts.notifier import AlertNotifier
from watchtower.incidents.incident import Ack, Incident, JobFacts
from watchtower.jobs.verdicts import close
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.incident_events import Change, IncidentEvent
from watchtower.wire.verdict import Cause, Status, Suspect, Verdict

LINKS = AlertLinks(public_url="https://tower")


def an_incident(ident: str = "01A", job: str = "llama", rank: int = 3) -> Incident:
    suspect = Suspect(
        rank=rank, node="gpu-1", cause=Cause.DATALOADER_STALL, why="Is in `read` at data.py:26."
    )
    verdict = Verdict(
        job=job,
        generation=1,
        status=Status.HUNG,
        summary="",
        cause=Cause.DATALOADER_STALL,
        confidence=0.9,
        suspects=(suspect,),
        waiting="0-2,4-7",
    )
    wall = Clock().wall()
    return Incident(
        id=ident,
        job=job,
        generation=1,
        status=Status.HUNG,
        opened_at=wall,
        updated_at=wall,
        verdict=verdict,
        sharer="a",
        facts=JobFacts(ranks=8, user="alice", dumps_in=8, dumps_wanted=8, checkpoint_step=1200),
    )


def opened(incident: Incident) -> IncidentEvent:
    return IncidentEvent(change=Change.OPENED, incident=incident)


def updated(incident: Incident) -> IncidentEvent:
    return IncidentEvent(change=Change.UPDATED, incident=incident)


def acknowledged(incident: Incident) -> IncidentEvent:
    acked = replace(incident, ack=Ack(at=1.0, by="ann"))
    return IncidentEvent(change=Change.ACKNOWLEDGED, incident=acked)


def closed(incident: Incident, status: Status = Status.RECOVERED) -> IncidentEvent:
    done = close(incident, status, Clock().wall())
    return IncidentEvent(change=Change.CLOSED, incident=done)


Story = Callable[["Run"], Awaitable[None]]


class Run:
    """A notifier with a store, which a story may restart."""

    def __init__(
        self, path: Path, receiver: Receiver, destinations: Sequence[Destination] = ()
    ) -> None:
        self.path, self.receiver = path, receiver
        self.destinations = destinations or [Webhook(receiver.url)]
        self.silenced: set[str] = set()
        self.begin()

    @property
    def stored(self) -> dict[str, tuple[int, int]]:
        """Version and delivered version of each stored alert."""
        with contextlib.closing(sqlite3.connect(self.path)) as db:
            rows = db.execute("SELECT incident, version, delivered FROM alerts").fetchall()
            return {ident: (version, delivered) for ident, version, delivered in rows}

    def begin(self) -> None:
        self.store = SqliteStore(self.path)
        startup = self.store.recall()
        self.notifier = AlertNotifier(self.destinations, self.store, Clock())
        self.notifier.recall(startup.alerts, startup.incidents)
        self.notifier.start(lambda subject: subject.job in self.silenced)

    async def end(self) -> None:
        await self.notifier.close()
        self.store.close()

    async def restart(self) -> None:
        await asyncio.wrap_future(self.store.probe())  # what was begun before is written
        await self.end()
        self.begin()

    async def save(self, incident: Incident) -> None:
        await asyncio.wrap_future(self.store.save_incident(incident))

    async def wait_for(self, count: int) -> list[dict]:
        return await asyncio.to_thread(self.receiver.wait_for, count)

    async def wait_for_requests(self, count: int) -> None:
        await asyncio.to_thread(self.receiver.wait_for_requests, count)

    async def settle(self) -> None:
        """Wait until nothing is to be sent, and everything is written."""
        while any(each.count_waiting() for each in self.notifier.outboxes().values()):
            await asyncio.sleep(0.01)
        await asyncio.wrap_future(self.store.probe())


def tell_story(
    story: Story, path: Path, receiver: Receiver, destinations: Sequence[Destination] = ()
) -> None:
    async def work() -> None:
        run = Run(path / "watchtower.db", receiver, destinations)
        try:
            await asyncio.wait_for(story(run), 100)
        finally:
            await run.end()

    asyncio.run(work())
