"""What the tower keeps through the store, and what it takes over from its last run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from watchtower.core.fleet.fleet import Fleet
from watchtower.core.fleet.generation import Generation, PastGeneration
from watchtower.core.fleet.job import Job
from watchtower.core.fleet.pace import Pause
from watchtower.store.records import Ack, DumpRow, Incident, Memory
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.live import LiveJob, close
from watchtower.tower.writes import STORE_HANGS_S, STORE_WAIT_S, Writes
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

MAX_UNSAVED = 1000
"""Incidents that wait in memory while the store fails; of further ones only the log tells."""

MAX_TOLD = 20
"""Incidents named at the end of a tower that could not store them."""

AGAIN_S = 5.0
"""The store is tried again this often while it fails."""

LOOK_S = 5.0
"""What is written meanwhile to a file that was removed is gone."""

SETTLED_S = 15.0
"""It works again when it has not failed for this long: three tries."""

PRUNE_EVERY_S = 60.0
"""How often to look for what is more than is kept."""

PACE_DIFFERS = 1.3
"""A typical step that became so many times longer or shorter is stored anew: the first steps of a
job are often the slowest ..."""

PACE_EVERY_S = 30.0
"""... but not more often than this: with it goes who the ranks are."""

DAY_S = 86_400.0

_T = TypeVar("_T")


class StoreFailedError(Exception):
    """What was sent could not be stored; the message says why. Sending it again may help."""


async def recall_dumps(archive: Archive, clock: Clock, fleet: Fleet, gen: Generation) -> None:
    """Give a generation the dumps of its present stall that the store has and it does not.

    They came before their rank was first reported, or the tower's last run took them. Raises
    TimeoutError, and what the store fails with.
    """
    last_beat = gen.last_beat_of_all()
    if last_beat is None:
        return
    now, wall = clock.now(), clock.wall()
    async for stored in archive.read_dumps(gen.job, wall - (now - last_beat)):
        job = fleet.jobs.get(gen.job)
        if job is None or job.generation is not gen:
            return
        fleet.recall_dumps(job, stored.sent, min(now, now - (wall - stored.taken_at)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saving:
    """The newest write of an incident that is under way."""

    incident: Incident
    future: Future[None]
    since: float
    """When the oldest write began of those that nobody has seen the end of."""


class Archive:
    """Writes behind the event loop's back; only what is acknowledged is waited for.

    What could not be written stays in memory until it can; to a store that hangs nothing more is
    given. Not thread-safe: futures are looked at, none calls back.
    """

    def __init__(self, store: SqliteStore, memory: Memory, clock: Clock) -> None:
        self.store = store
        self.failing_since: float | None = None
        """UNIX seconds; None while the store works."""
        self.failure = ""
        self._clock = clock
        self._started_at = clock.now()
        self._failed_at = self._tried_at = self._pruned_at = self._looked_at = float("-inf")
        self._recoveries = 0
        self._unsaved: dict[str, Incident] = {}
        self._saving: dict[str, _Saving] = {}
        self._dump_writes, self._others = Writes(STORE_WAIT_S), Writes(STORE_HANGS_S)
        self._left: dict[str, Incident] = {}
        for incident in memory.incidents:
            older = self._left.pop(incident.job, None)
            if older is not None and older.closed_at is None:  # only one is open at a time
                self.keep(close(older, Status.ENDED, clock.wall()))
            self._left[incident.job] = incident
        if store.failure is not None:
            self._note(store.failure)

    async def keep_dumps(self, job: str, sent: SentBatch) -> None:
        """Store a batch of a job. Raises StoreFailedError, at once while an earlier batch hangs."""
        self._dump_writes.take_done()
        save = partial(self.store.save_dumps, job, sent, self._clock.wall())
        future = self._dump_writes.begin(sent.batch.id, save)
        if future is None:
            raise StoreFailedError("the dumps could not be stored: the store hangs")
        await self.wait(future, "the dumps")

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
        return [one for one in self._unsaved.values() if job is None or one.job == job]

    def keep(self, incident: Incident | None) -> None:
        """Store an incident as it is now."""
        if incident is None:
            return
        earlier = self._unsaved.get(incident.id)
        if earlier is not None and incident.evidence is None:
            incident = replace(incident, evidence=earlier.evidence)
        if earlier is None and len(self._unsaved) >= MAX_UNSAVED:
            log.error("incident %s is not stored: too many wait for the store", incident.id)
            return
        self._settle(incident.id)
        self._unsaved[incident.id] = incident
        saving = self._saving.get(incident.id)
        if saving is None or self._clock.now() - saving.since < AGAIN_S:
            self._save(incident)

    def note_ack(self, ident: str, ack: Ack) -> None:
        """Add a stored ack to what waits to be written, which would be shown without it."""
        if (waiting := self._unsaved.get(ident)) is not None:
            self._unsaved[ident] = replace(waiting, ack=ack)

    def keep_pause(self, job: str, pause: Pause) -> None:
        """Store a learned pause; one that fails is stored again when the store works."""
        self._give(lambda: self.store.save_pause(job, pause))

    def fade_pauses(self, share: float) -> None:
        """Let all learned pauses fade, those of jobs that are not live too."""
        self._give(lambda: self.store.fade_pauses(share))

    def remember(self, job: Job, live: LiveJob) -> None:
        """Store whose a job is, who the ranks are and how fast they step, when that has changed,
        and once a day."""
        gen = job.generation
        now, wall, step_s = self._clock.now(), self._clock.wall(), gen.pace("").typical_s
        known = (len(gen.ranks), gen.is_paced, job.owner, int(wall // DAY_S), self._recoveries)
        differs = not 1 / PACE_DIFFERS <= step_s / (live.remembered_step_s or 1e-9) <= PACE_DIFFERS
        if known != live.remembered or (differs and now - live.remembered_at >= PACE_EVERY_S):
            past = gen.remember(job.owner)
            if not self._give(lambda: self.store.save_generation(gen.job, past, wall)):
                return
            if live.remembered is not None and live.remembered[-1] != self._recoveries:
                for pause in live.pauses.all():
                    self.keep_pause(gen.job, pause)
            live.remembered, live.remembered_step_s, live.remembered_at = known, step_s, now

    def forget(self, job: str, past: PastGeneration) -> None:
        """Store of a job that is over only how many generations it had."""
        wall = self._clock.wall()
        self._give(lambda: self.store.save_generation(job, past, wall))

    async def read_dumps(self, job: str, since: float) -> AsyncIterator[DumpRow]:
        """Read back the dumps of a job taken since a moment (UNIX seconds), newest first.

        Raises TimeoutError, and what the store fails with.
        """
        last, number = None, 0
        while number < MAX_RECALLED:
            page = await asyncio.wait_for(
                asyncio.wrap_future(self.store.dumps(job, since, after=last)), RECALL_S
            )
            for stored in page:
                yield stored
            if not page:
                return
            last, number = page[-1], number + len(page)

    def claim_left(self, job: str, generation: int) -> Incident | None:
        """Hand over the incident that the last run left of this generation, open or just ended;
        end one that is open of another generation."""
        left = self._left.pop(job, None)
        if left is None or left.generation == generation:
            return left
        if left.closed_at is None:
            self.keep(close(left, Status.ENDED, self._clock.wall()))
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
            self._give(self.store.probe)
            self._retry()
        elif self.failing_since is None and now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._give(self.store.look)
        if now - self._pruned_at >= PRUNE_EVERY_S:
            self._pruned_at = now
            self._give(lambda: self.store.prune(self._clock.wall()))

    def _give(self, save: Callable[[], Future[None]]) -> bool:
        """Begin a write that nobody waits for; False when the store hangs."""
        return self._others.begin(object(), save) is not None

    def _give_up_left(self) -> None:
        for incident in self._left.values():
            if incident.closed_at is None:
                self.keep(close(incident, Status.MONITORING_LOST, self._clock.wall()))
        self._left.clear()

    def close(self) -> None:
        """Queue what waits to be written: there is no later."""
        for ident in list(self._saving):
            self._settle(ident)
        for ident, incident in list(self._unsaved.items()):
            if ident not in self._saving or self._saving[ident].incident is not incident:
                self._save(incident)

    def tell_lost(self) -> None:
        """Name the incidents that the store does not have; when it is closed nothing else has."""
        written = [
            saving.incident
            for saving in self._saving.values()
            if saving.future.done() and saving.future.exception() is None
        ]
        unsaved = [one for one in self._unsaved.values() if one not in written]
        lost = [f"{one.id} (job {one.job})" for one in unsaved]
        if lost:
            more = f" and {len(lost) - MAX_TOLD} more" if len(lost) > MAX_TOLD else ""
            shown = ", ".join(lost[:MAX_TOLD])
            log.error("lost, for the store could not keep them: incident %s%s", shown, more)

    def _retry(self) -> None:
        for ident, incident in self._unsaved.items():
            if ident not in self._saving:
                self._save(incident)

    def _save(self, incident: Incident) -> None:
        """Queue a write; an earlier one of this incident is done before it, whatever its end."""
        before = self._saving.get(incident.id)
        since = before.since if before else self._clock.now()
        future = self.store.save_incident(incident)
        self._saving[incident.id] = _Saving(incident=incident, future=future, since=since)

    def _settle(self, ident: str) -> None:
        """Look whether the write of an incident is done."""
        saving = self._saving.get(ident)
        if saving is None or not saving.future.done():
            return
        del self._saving[ident]
        error = saving.future.exception()
        self._note(error)
        if error is None and self._unsaved.get(ident) is saving.incident:
            del self._unsaved[ident]
        elif error is None and ident in self._unsaved:
            self._save(self._unsaved[ident])

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
