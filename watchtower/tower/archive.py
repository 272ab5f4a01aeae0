"""What the tower keeps through the store, and what it takes over from its last run."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future

from watchtower.core.fleet.generation import Generation
from watchtower.core.fleet.pace import Pause
from watchtower.store.records import Incident, Memory
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.live import LiveJob, close
from watchtower.wire.dumps import DumpBatch
from watchtower.wire.verdict import Status

log = logging.getLogger("watchtower.tower")

LEFT_OPEN_S = 600.0
"""An incident that was open when the tower stopped waits this long for its job to be seen again."""


class StoreFailedError(Exception):
    """What was sent could not be stored; the message says why. Sending it again may help."""


class Archive:
    """Writes behind the event loop's back; only dumps are waited for, since they are acknowledged.

    What else fails to be written is logged, and written again with the next change.
    """

    def __init__(self, store: SqliteStore, memory: Memory, clock: Clock) -> None:
        self.store = store
        self._clock = clock
        self._started_at = clock.now()
        self._left_open = {incident.job: incident for incident in memory.open_incidents}

    async def keep_dumps(self, batch: DumpBatch) -> None:
        """Store a batch. Raises StoreFailedError."""
        try:
            await asyncio.wrap_future(self.store.save_dumps(batch, self._clock.wall()))
        except Exception as error:
            raise StoreFailedError(f"the dumps could not be stored: {error}") from error

    def keep(self, incident: Incident | None) -> None:
        """Store an incident as it is now."""
        if incident is not None:
            _watch(self.store.save_incident(incident))

    def keep_pause(self, job: str, pause: Pause) -> None:
        """Store a learned pause."""
        _watch(self.store.save_pause(job, pause))

    def remember(self, gen: Generation, live: LiveJob) -> None:
        """Store who the ranks are and how fast they step, when that has changed."""
        known = (len(gen.ranks), gen.is_paced)
        if known != live.remembered:
            live.remembered = known
            _watch(self.store.save_generation(gen.job, gen.remember()))

    def claim_left_open(self, job: str, generation: int) -> Incident | None:
        """Hand over the incident that was open when the tower stopped; end it if its ranks did."""
        left = self._left_open.pop(job, None)
        if left is not None and left.generation != generation:
            self.keep(close(left, Status.ENDED, self._clock.wall()))
            return None
        return left

    def give_up_left_open(self, now: float) -> None:
        """Close incidents whose jobs no agent has reported since the start."""
        if now - self._started_at <= LEFT_OPEN_S:
            return
        for incident in self._left_open.values():
            self.keep(close(incident, Status.MONITORING_LOST, self._clock.wall()))
        self._left_open.clear()


def _watch(future: Future[None]) -> None:
    future.add_done_callback(_log_failure)


def _log_failure(future: Future[None]) -> None:
    error = future.exception()
    if error is not None:
        log.error("the store failed: %s; check the data folder's owner and free space", error)
