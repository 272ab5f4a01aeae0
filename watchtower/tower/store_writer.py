"""Writes to the store without blocking the event loop, and reads the state of the last run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from msgspec import Raw

from watchtower.fleet.fleet import Fleet
from watchtower.incidents.incident import Incident
from watchtower.jobs.attempt import Attempt, PastAttempt
from watchtower.jobs.keeper import Keeper
from watchtower.jobs.pace import Pause
from watchtower.store.protocol import Store
from watchtower.store.values import AttemptRow, DumpRow, PauseRow, SeriesRow
from watchtower.tower.clock import Clock
from watchtower.tower.incident_events import Change, IncidentEvent
from watchtower.tower.recording import Recalled, Record
from watchtower.tower.waiting_writes import (
    STORE_HANGS_S,
    STORE_WAIT_S,
    OpenWrites,
    PendingRows,
    Unsaved,
)
from watchtower.wire.dumps import SentBatch
from watchtower.wire.series import SeriesBatch

log = logging.getLogger("watchtower.tower")

RECALL_S = 5.0
"""Seconds to wait for dumps from the store. After that the job is checked without them."""

READ_S = 10.0
"""Seconds that a request for incidents waits for a store that hangs."""

MAX_RECALLED = 8192
"""Batches of one job that are read from the store: two rounds of 4096 nodes."""

MAX_LISTED = 20
"""Lost incidents that are listed in the log when the tower ends."""

AGAIN_S = 5.0
"""Seconds between two retries while the store fails."""

CHECK_S = 5.0
"""Seconds between two checks of the store. Writes to a removed file are lost."""

SETTLED_S = 15.0
"""Seconds without a failure after which the store counts as working again: three retries."""

PRUNE_EVERY_S = 60.0
"""Seconds between two deletions of data over the limits."""

PACE_DIFFERS = 1.3
"""The typical step is stored again if it became this many times longer or shorter. The first steps
of a job are often the slowest."""

PACE_EVERY_S = 30.0
"""Least seconds between two such writes, because the row also contains all processes."""

DAY_S = 86_400.0

_T = TypeVar("_T")


class StoreFailedError(Exception):
    """Data could not be stored or read. The message contains the reason. A retry may succeed."""


async def recall_dumps(
    store_writer: StoreWriter, clock: Clock, fleet: Fleet, attempt: Attempt, record: Record
) -> None:
    """Add missing dumps of the current stall from the store to an attempt.

    They arrived before their rank was first reported, or during the tower's last run. Raises
    TimeoutError, and the errors of the store.
    """
    last_beat = attempt.last_beat_of_all()
    if last_beat is None:
        return
    now, wall = clock.now(), clock.wall()
    async for stored in store_writer.read_dumps(attempt.job, wall - (now - last_beat)):
        record(
            Recalled(
                at=clock.now(),
                job=attempt.job,
                taken_at=stored.taken_at,
                batch=Raw(stored.sent.body),
            )
        )
        job = fleet.jobs.get(attempt.job)
        if job is None or job.attempt is not attempt:
            return
        fleet.recall_dumps(job, stored.sent, min(now, now - (wall - stored.taken_at)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saving:
    """An unfinished write of an incident."""

    incident: Incident
    future: Future[None]


class StoreWriter:
    """Writes in the background. Only data that is acknowledged to a sender is waited for.

    Data that could not be written stays in memory until a retry succeeds. While the store hangs,
    nothing more is sent to it. Not thread-safe: it polls futures and uses no callbacks.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        """For calls whose futures are given to `read` or `wait` at once."""
        self.failing_since: float | None = None
        """UNIX seconds; None while the store works."""
        self.failure = ""
        self._clock = clock
        self._failed_at = self._tried_at = self._pruned_at = self._checked_at = float("-inf")
        self._recoveries = 0
        self._unsaved, self._rows = Unsaved(), PendingRows()
        self._rows_saving: Future[None] = Future()
        self._rows_saving.set_result(None)
        self._saving: dict[str, _Saving] = {}
        self._dump_writes, self._others = OpenWrites(STORE_WAIT_S), OpenWrites(STORE_HANGS_S)
        if store.failure is not None:
            self._note(store.failure)

    def begin_dumps(self, job: str, sent: SentBatch, sharer: str) -> Future[None]:
        """Start to store a batch of a job and return the future for `wait`.

        Raises StoreFailedError while an earlier batch hangs.
        """
        self._dump_writes.take_done()
        save = partial(self.store.save_dumps, job, sent, self._clock.wall(), sharer)
        future = self._dump_writes.begin(sent.batch.id, save)
        if future is None:
            raise StoreFailedError("the dumps could not be stored: the store hangs")
        return future

    def begin_series(self, batch: SeriesBatch, body: bytes, sharer: str) -> Future[None]:
        """Start to store the series of an incident and return the future for `wait`.

        Raises StoreFailedError while an earlier write hangs.
        """
        row = SeriesRow(
            incident=batch.incident,
            node=batch.node,
            launch=batch.launch,
            sharer=sharer,
            taken_at=self._clock.wall() - batch.held_s,
            body=body,
        )
        self._dump_writes.take_done()
        future = self._dump_writes.begin(batch.id, partial(self.store.save_series, row))
        if future is None:
            raise StoreFailedError("the series could not be stored: the store hangs")
        return future

    async def wait(self, future: Future[_T], what: str) -> _T:
        """Wait until a write is done and return its result.

        Raises StoreFailedError, also if it takes too long. The data may then be stored later.
        """
        try:
            stored = asyncio.shield(asyncio.wrap_future(future))
            result = await asyncio.wait_for(stored, STORE_WAIT_S)
        except Exception as error:
            if isinstance(error, asyncio.TimeoutError):
                error = TimeoutError(f"the store has not answered for {STORE_WAIT_S:g} s")
            self._note(error)
            raise StoreFailedError(f"{what} could not be stored: {error}") from error
        self._note(None)
        return result

    async def read(self, future: Future[_T]) -> _T:
        """Wait for a read of the store and return its result. Raises StoreFailedError."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), READ_S)
        except Exception as error:
            is_late = isinstance(error, asyncio.TimeoutError)
            why = f"no answer within {READ_S:g} s" if is_late else error
            raise StoreFailedError(f"the store could not be read: {why}") from error

    def queue(self) -> tuple[int, float]:
        """Return the number of unfinished writes and waiting rows, and the age of the oldest write
        in seconds."""
        count = len(self._dump_writes) + len(self._others) + len(self._saving) + len(self._rows)
        return count, max(self._dump_writes.oldest_s(), self._others.oldest_s())

    def unsaved(self, job: str | None) -> list[Incident]:
        """Return incidents, of one job or of all jobs, whose current state is not stored yet."""
        return [one for one in self._unsaved if job is None or one.job == job]

    def note(self, event: IncidentEvent) -> None:
        """Store the current state of an incident. If a write of it is unfinished, the new state
        follows.

        An acknowledgement is stored before its event. It is added to the state that still waits.
        """
        incident = event.incident
        if event.change is Change.ACKNOWLEDGED:
            self._unsaved.note_ack(incident)
            return
        self._settle(incident.id)
        if not self._unsaved.put(incident):
            log.error("incident %s is not stored: too many are waiting for the store", incident.id)
        elif incident.id not in self._saving:
            self._write_incident(incident.id)

    def save_pause(self, job: str, pause: Pause, owner: str = "") -> None:
        """Store a learned pause with the next tick. After a failure it is stored again when the
        store works."""
        key = f"pause {len(job)} {job} {pause.phase} {pause.frame_class}"
        self._rows.put(key, owner, self._clock.now(), lambda: PauseRow(job, pause))

    def fade_pauses(self, share: float) -> None:
        """Shorten all stored pauses, also those of jobs that are not live."""
        self._save_all_rows()  # else pauses that are not stored yet would keep their length
        self._begin_write(lambda: self.store.fade_pauses(share))

    def remember(self, keeper: Keeper) -> None:
        """Store owner, processes and typical step of a job with the next tick, if they have changed
        and once a day."""
        judgement, name, owner = keeper.judged, keeper.name, keeper.owner
        attempt = judgement.attempt
        now, wall, step_s = self._clock.now(), self._clock.wall(), attempt.pace("").typical_s
        known = (len(attempt.ranks), attempt.is_paced, owner, int(wall // DAY_S), self._recoveries)
        share = step_s / (judgement.remembered_step_s or 1e-9)
        differs = not 1 / PACE_DIFFERS <= share <= PACE_DIFFERS
        is_due = differs and now - judgement.remembered_at >= PACE_EVERY_S
        if known == judgement.remembered and not is_due:
            return
        make = partial(_make_row, attempt, owner, wall)
        if not self._rows.put(f"job {name}", keeper.sharer, now, make):
            return
        if judgement.remembered is not None and judgement.remembered[-1] != self._recoveries:
            for pause in keeper.pauses.all():
                self.save_pause(name, pause, keeper.sharer)
        judgement.remembered, judgement.remembered_step_s, judgement.remembered_at = (
            known,
            step_s,
            now,
        )

    def forget(self, job: str, past: PastAttempt) -> None:
        """Store with the next tick how many attempts a job had that is over."""
        row = AttemptRow(job, past, self._clock.wall())
        self._rows.put(f"job {job}", past.owner or job, self._clock.now(), lambda: row)

    async def read_dumps(self, job: str, since: float) -> AsyncIterator[DumpRow]:
        """Yield the stored dumps of a job taken after `since` (UNIX seconds), newest first.

        Raises TimeoutError, and the errors of the store.
        """
        last, number = None, 0
        while number < MAX_RECALLED:
            found = await asyncio.wait_for(
                asyncio.wrap_future(self.store.dumps(job, since, after=last)), RECALL_S
            )
            for stored in found:
                yield stored
            if not found:
                return
            last, number = found[-1], number + len(found)

    def tick(self, now: float) -> None:
        """Retry failed writes, write the rows that wait, and delete old data."""
        for ident in list(self._saving):
            self._settle(ident)
        for future in self._others.take_done():
            self._note(future.exception())
        if hanging_s := self._others.hanging_s():
            self._note(TimeoutError(f"it has not answered for {hanging_s:.0f} s"))
        if self.failing_since is not None and now - self._tried_at >= AGAIN_S:
            self._tried_at = now
            self._begin_write(self.store.probe)
            self._retry()
        elif self.failing_since is None and now - self._checked_at >= CHECK_S:
            self._checked_at = now
            self._begin_write(self.store.check)
        self._save_rows()
        if now - self._pruned_at >= PRUNE_EVERY_S:
            self._pruned_at = now
            self._begin_write(lambda: self.store.prune(self._clock.wall()))

    def _save_rows(self) -> None:
        """Start one transaction of the waiting rows, unless one is unfinished."""
        if self._rows and self._rows_saving.done() and not self._others.hanging_s():
            rows = self._rows.take()
            begun = self._others.begin(object(), lambda: self.store.save_rows(rows))
            self._rows_saving = begun or self._rows_saving

    def _save_all_rows(self) -> None:
        while self._rows:
            self._begin_write(partial(self.store.save_rows, self._rows.take()))

    def _begin_write(self, save: Callable[[], Future[None]]) -> bool:
        """Start a write without waiting for it. Return False if the store hangs."""
        return self._others.begin(object(), save) is not None

    def close(self) -> None:
        """Queue all unsaved data, because the tower is ending."""
        for ident in list(self._saving):
            self._settle(ident)
        for incident in self._unsaved:
            saving = self._saving.get(incident.id)
            if saving is None or saving.incident is not incident:
                self._write_incident(incident.id)
        self._save_all_rows()

    def report_lost(self) -> None:
        """Log the incidents that are lost because the store could not write them."""
        written = [
            saving.incident
            for saving in self._saving.values()
            if saving.future.done() and saving.future.exception() is None
        ]
        unsaved = [one for one in self._unsaved if not any(one is each for each in written)]
        lost = [f"{one.id} (job {one.job})" for one in unsaved]
        if lost:
            more = f" and {len(lost) - MAX_LISTED} more" if len(lost) > MAX_LISTED else ""
            shown = ", ".join(lost[:MAX_LISTED])
            log.error("lost because the store could not write them: incident %s%s", shown, more)

    def _retry(self) -> None:
        for incident in self._unsaved:
            if incident.id not in self._saving:
                self._write_incident(incident.id)

    def _write_incident(self, ident: str) -> None:
        """Queue a write. It follows an earlier write of this incident, also if that one failed."""
        incident = self._unsaved.find(ident)
        assert incident is not None, "only unsaved incidents are written"
        future = self.store.save_incident(incident)
        self._saving[ident] = _Saving(incident=incident, future=future)

    def _settle(self, ident: str) -> None:
        """If the write of an incident is done, handle its result."""
        saving = self._saving.get(ident)
        if saving is None or not saving.future.done():
            return
        del self._saving[ident]
        error = saving.future.exception()
        self._note(error)
        if error is None and self._unsaved.find(ident) is saving.incident:
            self._unsaved.remove(ident)
        elif error is None and ident in self._unsaved:
            self._write_incident(ident)

    def _note(self, error: BaseException | None) -> None:
        """Note the result of a write. Log a failure once, and once that the store works again."""
        now = self._clock.now()
        if error is not None:
            self.failure, self._failed_at = str(error), now
            if self.failing_since is None:
                self.failing_since, self._tried_at = self._clock.wall(), now
                log.error("the store fails: %s; incidents stay in memory until it works", error)
        elif self.failing_since is not None and now - self._failed_at >= SETTLED_S:
            self.failing_since, self.failure = None, ""
            self._recoveries += 1
            log.info("the store works again")


def _make_row(attempt: Attempt, owner: str, wall: float) -> AttemptRow:
    return AttemptRow(attempt.job, attempt.remember(owner), wall)
