"""Silences: jobs whose alerts do not fire for a while.

A silenced job is monitored, diagnosed and stored as before. Metrics mark silenced jobs, and alert
rules exclude them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from watchtower.core.text import say_duration
from watchtower.store.values import Silence
from watchtower.tower.clock import Clock, rfc3339
from watchtower.tower.request_checks import RequestRefusedError, check_texts
from watchtower.tower.store_writer import StoreWriter
from watchtower.wire.bounds import MAX_NAME, MAX_SILENCE_S, MAX_TEXT

MAX_SILENCES = 1000
"""Silenced jobs at one time. For more jobs, change the alert rules instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceView:
    """A silenced job, as the API returns it."""

    job: str
    since: str
    until: str
    reason: str


class Silences:
    """The silences in force."""

    def __init__(
        self, store_writer: StoreWriter, silences: Iterable[Silence], clock: Clock
    ) -> None:
        self._store_writer = store_writer
        self._clock = clock
        self._by_job = {silence.job: silence for silence in silences}

    def find(self, job: str) -> Silence | None:
        """Return the current silence of a job; None if the job is not silenced."""
        silence = self._by_job.get(job)
        return silence if silence is not None and self._clock.wall() < silence.until else None

    def all(self) -> list[Silence]:
        """Return all current silences, by job."""
        return [silence for job in sorted(self._by_job) if (silence := self.find(job)) is not None]

    async def add(self, job: str, for_s: float, reason: str) -> Silence:
        """Silence a job. It need not run yet: a silence may be set before maintenance begins.

        Raises RequestRefusedError, StoreFailedError.
        """
        if not 1 <= for_s <= MAX_SILENCE_S:
            most = say_duration(MAX_SILENCE_S)
            raise RequestRefusedError(
                f"`for_s` is {for_s:g}, allowed is 1 to {MAX_SILENCE_S:g} ({most})"
            )
        check_texts(job=(job, MAX_NAME), reason=(reason, MAX_TEXT))
        self._by_job = {silence.job: silence for silence in self.all()}
        if job not in self._by_job and len(self._by_job) >= MAX_SILENCES:
            raise RequestRefusedError(
                f"{MAX_SILENCES} jobs are already muted: unmute one of them first"
            )
        now = self._clock.wall()
        silence = Silence(job=job, since=now, until=now + for_s, reason=reason.strip())
        await self._store_writer.wait(self._store_writer.store.save_silence(silence), "the mute")
        self._by_job[job] = silence
        return silence

    async def remove(self, job: str) -> bool:
        """End the silence of a job; False if the job is not silenced. Raises StoreFailedError."""
        was_silenced = self.find(job) is not None
        removing = self._store_writer.store.remove_silence(job)
        await self._store_writer.wait(removing, "the end of the mute")
        self._by_job.pop(job, None)
        return was_silenced


def view_silence(silence: Silence) -> SilenceView:
    """Return a silence as the API returns it."""
    since, until = rfc3339(silence.since), rfc3339(silence.until)
    return SilenceView(job=silence.job, since=since, until=until, reason=silence.reason)
