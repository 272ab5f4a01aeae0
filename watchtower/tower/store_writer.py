"""Writes to the store, and reads what the last run of the tower left there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from watchtower.core.fleet.fleet import Fleet
from watchtower.core.fleet.generation import Generation, PastGeneration
from watchtower.core.fleet.job import Job
from watchtower.core.fleet.pace import Pause
from watchtower.store.sqlite import SqliteStore
from watchtower.store.values import Ack, DumpRow, GenerationRow, Incident, PauseRow, StartupState
from watchtower.tower.clock import Clock
from watchtower.tower.live import LiveJob, close
from watchtower.tower.open_writes import STORE_HANGS_S, STORE_WAIT_S, OpenWrites
from watchtower.tower.pending_rows import PendingRows
from watchtower.tower.unsaved import Unsaved
from watchtower.wire.dumps import SentBatch
from watchtower.wire.verdict import Status

log = logging.getLogger("watchtower.tower")

LEFT_OPEN_S = 600.0
"""An incident that was open when the tower stopped waits this long for its job to be seen again."""

RECALL_S = 5.0
"""A store that does not answer for this long must not keep a job from being judged."""

READ_S = 10.0
"""People who ask for history wait no longer for a store that hangs."""

MAX_RECALLED = 8192
"""Batches read back of one job: two rounds of 4096 nodes."""

MAX_TOLD = 20
"""Incidents named at the end of a tower that could not store them."""

AGAIN_S = 5.0
"""The store is tried again this often while it fails."""

CHECK_FILE_S = 5.0
"""What is written meanwhile to a file that was removed is gone."""

SETTLED_S = 15.0
"""It works again when it has not failed for this long: three tries."""

PRUNE_EVERY_S = 60.0
"""How often to delete what is over the limits."""

PACE_DIFFERS = 1.3
"""A typical step that became so many times longer or shorter is stored anew: the first steps of a
job are often the slowest ..."""

PACE_EVERY_S = 30.0
"""... but not more often than this: with it goes who the ranks are."""

DAY_S = 86_400.0

_T = TypeVar("_T")


class StoreFailedError(Exception):
    """What was sent could not be stored; the message says why. Sending it again may help."""


async def recall_dumps(
    store_writer: StoreWriter, clock: Clock, fleet: Fleet, gen: Generation
) -> None:
    """Give a generation the dumps of its present stall that the store has and it does not.

    They came before their rank was first reported, or the tower's last run took them. Raises
    TimeoutError, and what the store fails with.
    """
    last_beat = gen.last_beat_of_all()
    if last_beat is None:
        return
    now, wall = clock.now(), clock.wall()
    async for stored in store_writer.read_dumps(gen.job, wall - (now - last_beat)):
        job = fleet.jobs.get(gen.job)
        if job is None or job.generation is not gen:
            return
        fleet.recall_dumps(job, stored.sent, min(now, now - (wall - stored.taken_at)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saving:
    """The write of an incident that is under way."""

    incident: Incident
    future: Future[None]


class StoreWriter:
    """Writes behind the event loop's back; only what is acknowledged is waited for.

    What could not be written stays in memory until it can; a store that hangs gets
    nothing more. Not thread-safe: it polls futures, none calls back.
    """

    def __init__(self, store: SqliteStore, startup: StartupState, clock: Clock) -> None:
        self.store = store
        self.failing_since: float | None = None
        """UNIX seconds; None while the store works."""
        self.failure = ""
        self._clock = clock
        self._started_at = clock.now()
        self._failed_at = self._tried_at = self._pruned_at = self._checked_at = float("-inf")
        self._recoveries = 0
        self._unsaved, self._rows = Unsaved(), PendingRows()
        self._rows_saving: Future[None] = Future()
        self._rows_saving.set_result(None)
        self._saving: dict[str, _Saving] = {}
        self._dump_writes, self._others = OpenWrites(STORE_WAIT_S), OpenWrites(STORE_HANGS_S)
        self._left: dict[str, Incident] = {}
        for incident in startup.incidents:
            older = self._left.pop(incident.job, None)
            if older is not None and older.closed_at is None:  # only one is open at a time
                self.save(close(older, Status.ENDED, clock.wall()))
            self._left[incident.job] = incident
        if store.failure is not None:
            self._note(store.failure)

    def begin_dumps(self, job: str, sent: SentBatch) -> Future[None]:
        """Begin to store a batch of a job; `wait` for it. Raises StoreFailedError while an earlier
        batch hangs."""
        self._dump_writes.take_done()
        save = partial(self.store.save_dumps, job, sent, self._clock.wall())
        future = self._dump_writes.begin(sent.batch.id, save)
        if future is None:
            raise StoreFailedError("the dumps could not be stored: the store hangs")
        return future

    async def wait(self, future: Future[_T], what: str) -> _T:
        """Wait until something is stored. Raises StoreFailedError, also when that takes too long:
        then it may be stored later all the same."""
        try:
            stored = asyncio.shield(asyncio.wrap_future(future))
            result = await asyncio.wait_for(stored, STORE_WAIT_S)
        except Exception as error:
            if isinstance(error, TimeoutError):
                error = TimeoutError(f"the store has not answered for {STORE_WAIT_S:g} s")
            self._note(error)
            raise StoreFailedError(f"{what} could not be stored: {error}") from error
        self._note(None)
        return result

    async def read(self, future: Future[_T]) -> _T:
        """Wait for what is read. Raises StoreFailedError."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), READ_S)
        except Exception as error:
            why = f"no answer within {READ_S:g} s" if isinstance(error, TimeoutError) else error
            raise StoreFailedError(f"the store could not be read: {why}") from error

    def unsaved(self, job: str | None) -> list[Incident]:
        """Incidents, of one job or of all, that the store does not have as they are now."""
        return [one for one in self._unsaved if job is None or one.job == job]

    def save(self, incident: Incident | None, owner: str = "") -> None:
        """Store an incident of an owner's job as it is now; while a write of it is under way, when
        that is done."""
        if incident is None:
            return
        self._settle(incident.id)
        if not self._unsaved.put(incident, owner):
            log.error("incident %s is not stored: too many wait for the store", incident.id)
        elif incident.id not in self._saving:
            self._write_incident(incident.id)

    def note_ack(self, ident: str, ack: Ack) -> None:
        """Add a stored ack to what waits to be written, which would be shown without it."""
        self._unsaved.note_ack(ident, ack)

    def save_pause(self, job: str, pause: Pause, owner: str = "") -> None:
        """Store a learned pause with the next tick; one that fails is stored again when the store
        works."""
        key = f"pause {len(job)} {job} {pause.phase} {pause.frame_class}"
        self._rows.put(key, owner, self._clock.now(), lambda: PauseRow(job, pause))

    def fade_pauses(self, share: float) -> None:
        """Let all learned pauses fade, those of jobs that are not live too."""
        self._save_all_rows()  # else what was learned before would not fade
        self._begin_write(lambda: self.store.fade_pauses(share))

    def remember(self, job: Job, live: LiveJob) -> None:
        """Store with a tick whose a job is, who the ranks are and how fast they step, when that has
        changed, and once a day."""
        gen = job.generation
        now, wall, step_s = self._clock.now(), self._clock.wall(), gen.pace("").typical_s
        known = (len(gen.ranks), gen.is_paced, job.owner, int(wall // DAY_S), self._recoveries)
        differs = not 1 / PACE_DIFFERS <= step_s / (live.remembered_step_s or 1e-9) <= PACE_DIFFERS
        if known != live.remembered or (differs and now - live.remembered_at >= PACE_EVERY_S):
            owner = job.owner
            if not self._rows.put(
                f"job {gen.job}",
                job.sharer,
                now,
                lambda: GenerationRow(gen.job, gen.remember(owner), wall),
            ):
                return
            if live.remembered is not None and live.remembered[-1] != self._recoveries:
                for pause in live.pauses.all():
                    self.save_pause(gen.job, pause, job.sharer)
            live.remembered, live.remembered_step_s, live.remembered_at = known, step_s, now

    def forget(self, job: str, past: PastGeneration) -> None:
        """Store with a tick of a job that is over only how many generations it had."""
        row = GenerationRow(job, past, self._clock.wall())
        self._rows.put(f"job {job}", past.owner or job, self._clock.now(), lambda: row)

    async def read_dumps(self, job: str, since: float) -> AsyncIterator[DumpRow]:
        """Read back the dumps of a job taken since a moment (UNIX seconds), newest first.

        Raises TimeoutError, and what the store fails with.
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

    def claim_left(self, job: str, generation: int) -> Incident | None:
        """Hand over the incident that the last run left of this generation, open or just ended;
        end one that is open of another generation."""
        left = self._left.pop(job, None)
        if left is None or left.generation == generation:
            return left
        if left.closed_at is None:
            self.save(close(left, Status.ENDED, self._clock.wall()))
        return None

    def tick(self, now: float) -> None:
        """Give up what never came back, write what could not be written, remove what is old."""
        if now - self._started_at > LEFT_OPEN_S:
            self._give_up_left()
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
        elif self.failing_since is None and now - self._checked_at >= CHECK_FILE_S:
            self._checked_at = now
            self._begin_write(self.store.check_file)
        self._save_rows()
        if now - self._pruned_at >= PRUNE_EVERY_S:
            self._pruned_at = now
            self._begin_write(lambda: self.store.prune(self._clock.wall()))

    def _save_rows(self) -> None:
        """Begin one transaction of the rows that wait, unless one is under way."""
        if self._rows and self._rows_saving.done() and not self._others.hanging_s():
            rows = self._rows.take()
            begun = self._others.begin(object(), lambda: self.store.save_rows(rows))
            self._rows_saving = begun or self._rows_saving

    def _save_all_rows(self) -> None:
        while self._rows:
            self._begin_write(partial(self.store.save_rows, self._rows.take()))

    def _begin_write(self, save: Callable[[], Future[None]]) -> bool:
        """Begin a write without waiting for it; False if the store hangs."""
        return self._others.begin(object(), save) is not None

    def _give_up_left(self) -> None:
        for incident in self._left.values():
            if incident.closed_at is None:
                self.save(close(incident, Status.MONITORING_LOST, self._clock.wall()))
        self._left.clear()

    def close(self) -> None:
        """Queue what waits to be written: there is no later."""
        for ident in list(self._saving):
            self._settle(ident)
        for incident in self._unsaved:
            saving = self._saving.get(incident.id)
            if saving is None or saving.incident is not incident:
                self._write_incident(incident.id)
        self._save_all_rows()

    def report_lost(self) -> None:
        """Name the incidents that the store does not have; when it is closed nothing else has."""
        written = [
            saving.incident
            for saving in self._saving.values()
            if saving.future.done() and saving.future.exception() is None
        ]
        unsaved = [one for one in self._unsaved if not any(one is each for each in written)]
        lost = [f"{one.id} (job {one.job})" for one in unsaved]
        if lost:
            more = f" and {len(lost) - MAX_TOLD} more" if len(lost) > MAX_TOLD else ""
            shown = ", ".join(lost[:MAX_TOLD])
            log.error("lost, for the store could not keep them: incident %s%s", shown, more)

    def _retry(self) -> None:
        for incident in self._unsaved:
            if incident.id not in self._saving:
                self._write_incident(incident.id)

    def _write_incident(self, ident: str) -> None:
        """Queue a write; an earlier one of this incident is done before it, whatever its end."""
        incident = self._unsaved.find(ident)
        assert incident is not None, "what is written waits"
        future = self.store.save_incident(incident)
        self._saving[ident] = _Saving(incident=incident, future=future)

    def _settle(self, ident: str) -> None:
        """Check whether the write of an incident is done."""
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
        """Note how a write went; say once that the store fails, and once that it works again."""
        now = self._clock.now()
        if error is not None:
            self.failure, self._failed_at = str(error), now
            if self.failing_since is None:
                self.failing_since, self._tried_at = self._clock.wall(), now
                log.error("the store fails: %s; verdicts go on in memory", error)
        elif self.failing_since is not None and now - self._failed_at >= SETTLED_S:
            self.failing_since, self.failure = None, ""
            self._recoveries += 1
            log.info("the store works again")
