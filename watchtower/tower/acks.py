"""Acknowledgements of incidents. Alert rules leave acknowledged incidents out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from watchtower.incidents.incident import Ack
from watchtower.jobs.keeper import Keeper
from watchtower.tower.clock import Clock
from watchtower.tower.incident_events import Change, IncidentFeed
from watchtower.tower.recording import Acknowledged, Record
from watchtower.tower.request_checks import check_texts
from watchtower.tower.store_writer import StoreFailedError, StoreWriter
from watchtower.wire.bounds import MAX_NAME, MAX_TEXT


class Acks:
    """Stores acknowledgements."""

    def __init__(
        self,
        store_writer: StoreWriter,
        feed: IncidentFeed,
        keepers: Mapping[str, Keeper],
        clock: Clock,
        record: Record,
    ) -> None:
        self._store_writer, self._feed, self._keepers = store_writer, feed, keepers
        self._clock, self._record = clock, record
        self.changes = 0
        """Number of acknowledgements so far."""

    async def ack(self, incident: str, by: str, note: str) -> Ack | None:
        """Store an acknowledgement and return it; None if no incident has this id.

        Raises RequestRefusedError, StoreFailedError.
        """
        self._record(Acknowledged(at=self._clock.now(), incident=incident, by=by, note=note))
        check_texts(by=(by, MAX_NAME), note=(note, MAX_TEXT))
        writer = self._store_writer
        ack = Ack(at=self._clock.wall(), by=by.strip(), note=note.strip())
        is_there = await writer.save_ack(incident, ack)
        known = [one for one in writer.unsaved(None) if one.id == incident]
        if known and not is_there:
            raise StoreFailedError(
                "the incident is not stored yet, so it cannot be acknowledged: try again"
            )
        if not is_there:
            return None
        self.changes += 1
        for keeper in self._keepers.values():
            if (acked := keeper.take_ack(incident, ack)) is not None:
                known = [acked]
        for one in known:
            self._feed.publish(Change.ACKNOWLEDGED, replace(one, ack=ack))
        return ack
