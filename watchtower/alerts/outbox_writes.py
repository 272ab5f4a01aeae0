"""Writes of one outbox to the store: which versions are on the disk, and which must be written.

The store writes in its own thread, in order. A write that fails is repeated with the next check.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import msgspec

from watchtower.alerts.alert import Alert
from watchtower.alerts.outbox import Entry, Outbox
from watchtower.service.calls import timeout
from watchtower.store.protocol import Store
from watchtower.store.values import AlertRow
from watchtower.tower.clock import Clock

log = logging.getLogger("watchtower.alerts")

STORE_S = 0.5
"""Seconds that a delivery waits for the store. On-call is notified even if the disk is full."""

_ALERTS = msgspec.json.Decoder(Alert)


class OutboxWrites:
    """The writes of one outbox. Call it from the tower's event loop only."""

    def __init__(self, destination: str, outbox: Outbox, store: Store, clock: Clock) -> None:
        self._destination, self._outbox = destination, outbox
        self._store, self._clock = store, clock
        self._unsaved: set[str] = set()
        """Incidents whose current entry is not written, and no write of it has begun."""
        self._saving: dict[str, Future[None]] = {}
        """The last unfinished write of each incident."""

    def save(self, entry: Entry) -> None:
        """Write an entry to the store, or remove it if the destination has received its end."""
        alert = entry.alert
        self._unsaved.discard(alert.incident)
        if entry.is_finished:
            ended = self._store.remove_alert(self._destination, alert.incident, self._clock.wall())
            self._saving[alert.incident] = ended
            return
        row = AlertRow(
            destination=self._destination,
            incident=alert.incident,
            alert=msgspec.json.encode(alert).decode(),
            version=alert.version,
            delivered=entry.delivered,
            receipt=entry.receipt,
            updated_at=self._clock.wall(),
        )
        self._saving[row.incident] = self._store.save_alert(row)

    def save_soon(self, entry: Entry) -> None:
        """Write a new version of an entry. Versions that follow each other faster than the store
        writes are written once: before the delivery, with the next check or by `save_all`."""
        saving = self._saving.get(entry.alert.incident)
        if saving is not None and not saving.done():
            self._unsaved.add(entry.alert.incident)
        else:
            self.save(entry)

    def remove(self, incident: str) -> None:
        """Remove the alert of an incident from the store."""
        self._saving[incident] = self._store.remove_alert(self._destination, incident)

    def save_all(self) -> None:
        """Write everything that is not written yet."""
        unsaved, self._unsaved = self._unsaved, set()
        for incident in unsaved:
            entry = self._outbox.entries.get(incident)
            if entry is not None:
                self.save(entry)
            else:
                self.remove(incident)

    def check(self) -> None:
        """Write again what could not be written, if no write is unfinished."""
        for incident, future in list(self._saving.items()):
            if future.done():
                del self._saving[incident]
                if future.exception() is not None:
                    self._unsaved.add(incident)
        if not self._saving:
            self.save_all()

    async def wait_for(self, entries: Sequence[Entry]) -> None:
        """Wait until the entries are written, a write has failed, or `STORE_S` seconds are over."""
        for entry in entries:
            if entry.alert.incident in self._unsaved:
                self.save(entry)
        futures = [self._saving.get(entry.alert.incident) for entry in entries]
        wake = asyncio.get_running_loop().call_soon_threadsafe
        with contextlib.suppress(asyncio.TimeoutError):
            async with timeout(STORE_S):
                for saving in futures:
                    if saving is not None and not saving.done():
                        is_done = asyncio.Event()
                        saving.add_done_callback(partial(_wake, wake, is_done))
                        await is_done.wait()


def read_alert(row: AlertRow) -> Alert | None:
    """Return the alert of a row; None, with a warning, if another version has written it."""
    try:
        return _ALERTS.decode(row.alert)
    except msgspec.MsgspecError as error:
        log.warning("the alert of incident %s cannot be read: %s", row.incident, error)
        return None


def _wake(call_soon: Callable[..., object], event: asyncio.Event, _: Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        call_soon(event.set)
