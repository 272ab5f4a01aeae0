"""What people say about paging: a job is muted for a while, an incident is acknowledged.

Neither changes what is watched, diagnosed or kept. Alert rules leave out what is muted or
acknowledged; the metrics say which that is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from watchtower.core.phrases import say_duration
from watchtower.store.records import Ack, Mute
from watchtower.tower.clock import Clock, rfc3339
from watchtower.tower.live import LiveJob
from watchtower.tower.store_writer import StoreFailedError, StoreWriter
from watchtower.wire.bounds import MAX_NAME, MAX_TEXT, check_text

MAX_MUTES = 1000
"""Jobs muted at one time: above that, alert rules are what should be changed."""

MAX_MUTE_S = 30 * 86_400.0
"""What is muted for longer than a month has been forgotten."""


class PagingRefusedError(Exception):
    """A mute or an ack that cannot be taken; the message says why and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MuteView:
    """A muted job."""

    job: str
    since: str
    until: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AckView:
    """Who looks after an incident."""

    at: str
    by: str
    note: str


class Paging:
    """The mutes in force, and acks on their way to the store."""

    def __init__(self, store_writer: StoreWriter, mutes: Iterable[Mute], clock: Clock) -> None:
        self._store_writer = archive
        self._clock = clock
        self._mutes = {mute.job: mute for mute in mutes}

    def mute_of(self, job: str) -> Mute | None:
        """The mute that is in force for a job."""
        mute = self._mutes.get(job)
        return mute if mute is not None and self._clock.wall() < mute.until else None

    def mutes(self) -> list[Mute]:
        """Every mute in force, by job."""
        return [mute for job in sorted(self._mutes) if (mute := self.mute_of(job)) is not None]

    async def mute(self, job: str, for_s: float, reason: str) -> Mute:
        """Mute a job, seen or not: maintenance is announced before it begins.

        Raises PagingRefusedError, StoreFailedError.
        """
        if not 1 <= for_s <= MAX_MUTE_S:
            most = say_duration(MAX_MUTE_S)
            raise PagingRefusedError(
                f"`for_s` is {for_s:g}, allowed is 1 to {MAX_MUTE_S:g} ({most})"
            )
        _check(job=(job, MAX_NAME), reason=(reason, MAX_TEXT))
        self._mutes = {mute.job: mute for mute in self.mutes()}
        if job not in self._mutes and len(self._mutes) >= MAX_MUTES:
            raise PagingRefusedError(
                f"{MAX_MUTES} jobs are muted already; unmute one of them first"
            )
        now = self._clock.wall()
        mute = Mute(job=job, since=now, until=now + for_s, reason=reason.strip())
        await self._store_writer.wait(self._store_writer.store.save_mute(mute), "the mute")
        self._mutes[job] = mute
        return mute

    async def unmute(self, job: str) -> bool:
        """Let a job page again; False when it was not muted. Raises StoreFailedError."""
        was_muted = self.mute_of(job) is not None
        await self._store_writer.wait(
            self._store_writer.store.remove_mute(job), "the end of the mute"
        )
        self._mutes.pop(job, None)
        return was_muted

    async def ack(self, incident: str, by: str, note: str, live: Iterable[LiveJob]) -> Ack | None:
        """Note who looks after an incident; None when there is none of that id.

        Raises PagingRefusedError, StoreFailedError.
        """
        _check(by=(by, MAX_NAME), note=(note, MAX_TEXT))
        ack = Ack(at=self._clock.wall(), by=by.strip(), note=note.strip())
        is_there = await self._store_writer.wait(
            self._store_writer.store.save_ack(incident, ack), "the ack"
        )
        if not is_there and any(one.id == incident for one in self._store_writer.unsaved(None)):
            raise StoreFailedError(
                "the incident is not written yet, so the ack cannot be; try again"
            )
        if is_there:
            self._store_writer.note_ack(incident, ack)
        for job in live if is_there else ():
            if job.incident is not None and job.incident.id == incident:
                job.incident = replace(job.incident, ack=ack)
        return ack if is_there else None


def view_mute(mute: Mute) -> MuteView:
    """A mute as people read it."""
    since, until = rfc3339(mute.since), rfc3339(mute.until)
    return MuteView(job=mute.job, since=since, until=until, reason=mute.reason)


def view_ack(ack: Ack) -> AckView:
    """An ack as people read it."""
    return AckView(at=rfc3339(ack.at), by=ack.by, note=ack.note)


def _check(**texts: tuple[str, int]) -> None:
    for field, (text, limit) in texts.items():
        try:
            check_text(field, text, limit)
        except ValueError as error:
            raise PagingRefusedError(str(error)) from None
