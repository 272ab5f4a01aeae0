"""Incidents as the API returns them: from the store, and with the live verdict if still open."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from watchtower.core.case_summary import CaseSummary
from watchtower.core.ranksets import format_ranks
from watchtower.diagnoser.summaries import read_summary as read_summary_text
from watchtower.store.rows import read_case
from watchtower.store.values import Incident
from watchtower.tower.acks import AckView, view_ack
from watchtower.tower.clock import rfc3339
from watchtower.tower.silences import SilenceView, subject_of, view_silence
from watchtower.tower.stack_views import list_main_stacks, list_whole_stacks
from watchtower.tower.store_writer import StoreFailedError
from watchtower.tower.tower import Tower
from watchtower.tower.views import VerdictView, live_verdict, view_verdict
from watchtower.wire.drills import PREFIX
from watchtower.wire.stacks import Frame
from watchtower.wire.verdict import Cause, SharedCause, Status, Verdict, VerdictEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentSummary:
    """An incident in a list."""

    id: str
    job: str
    generation: int
    status: Status
    cause: Cause | None
    suspect_ranks: str
    """Rank set, such as "0-6,8"."""
    summary: str
    opened_at: str
    closed_at: str | None
    ack: AckView | None
    shared_cause: SharedCause | None
    """Cause that other incidents may share; null if none is known."""
    shadow: bool
    """Whether no alert is sent, because the tower or the cause is in shadow mode."""
    silence: SilenceView | None
    """The silence of its job, user or node; null if it is closed or not silenced."""
    outage: str | None
    """Id of the first incident of its outage; null without a shared cause. Incidents with the same
    one belong together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackView:
    """One distinct main-thread stack and the ranks that have it."""

    ranks: str
    frames: list[Frame]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictEntryView:
    """One verdict in the history of an incident."""

    at: str
    cause: Cause
    confidence: float
    suspect_ranks: str
    """Rank set, such as "0-6,8"."""
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentDetail:
    """An incident with its verdict and its stacks."""

    id: str
    job: str
    generation: int
    status: Status
    opened_at: str
    closed_at: str | None
    ack: AckView | None
    shadow: bool
    """As in `IncidentSummary`."""
    silence: SilenceView | None
    """As in `IncidentSummary`."""
    outage: str | None
    """As in `IncidentSummary`."""
    verdict: VerdictView
    verdicts: list[VerdictEntryView]
    """All verdicts with their times, oldest first."""
    stacks: list[StackView]


async def list_incidents(
    tower: Tower, job: str | None, limit: int, with_drills: bool = True
) -> list[IncidentSummary]:
    """Return the newest incidents, of one job or of all jobs."""
    incidents = await _read_incidents(tower, job, limit, with_drills)
    return [_summarize(tower, incident) for incident in incidents]


async def get_incident(tower: Tower, incident_id: str) -> IncidentDetail | None:
    """Return one incident; None if the id is unknown."""
    incident = await read_incident(tower, incident_id)
    if incident is None:
        return None
    return IncidentDetail(
        id=incident.id,
        job=incident.job,
        generation=incident.generation,
        status=incident.status,
        opened_at=rfc3339(incident.opened_at),
        closed_at=_when(incident.closed_at),
        ack=view_ack(incident.ack) if incident.ack else None,
        shadow=incident.shadow,
        silence=_view_silence(tower, incident),
        outage=incident.identity.outage or None,
        verdict=view_verdict(_verdict_of(tower, incident)),
        verdicts=[_view_entry(entry) for entry in incident.verdicts],
        stacks=await _read_stacks(tower, incident_id),
    )


async def read_summary(tower: Tower, incident_id: str) -> CaseSummary | None:
    """Return the summary of an incident's case; None if there is none."""
    unsaved = _find_unsaved(tower, incident_id)
    body = unsaved.summary if unsaved is not None else None
    if body is None:
        store_writer = tower.store_writer
        body = await store_writer.read(store_writer.store.summary(incident_id))
    return read_summary_text(body) if body is not None else None


async def _read_stacks(tower: Tower, incident_id: str) -> list[StackView]:
    """Return the distinct main-thread stacks of the last dumps, rarest first."""
    summary = await read_summary(tower, incident_id)
    found = list_whole_stacks(summary.stacks) if summary is not None else None
    if found is None:
        incident = await read_incident(tower, incident_id, with_case=True)
        # The case of a large job is decoded in a thread, so that reports are not delayed.
        case = await asyncio.to_thread(read_case, incident) if incident is not None else None
        found = list_main_stacks(case) if case is not None else ()
    return [StackView(ranks=ranks, frames=list(frames)) for ranks, frames in found]


async def incident_verdict(tower: Tower, incident_id: str) -> Verdict | None:
    """Return the verdict of one incident; None if the id is unknown."""
    incident = await read_incident(tower, incident_id, with_case=False)
    return _verdict_of(tower, incident) if incident else None


def _verdict_of(tower: Tower, incident: Incident) -> Verdict:
    """Return the live verdict of an open incident, else the stored one."""
    live = live_verdict(tower, incident.job)
    return live if live is not None and live.incident == incident.id else incident.verdict


async def last_verdict(tower: Tower, job: str) -> Verdict | None:
    """Return the verdict of a job's latest incident; None if it had no incident.

    The job need not be live.
    """
    incidents = await _read_incidents(tower, job, 1)
    return incidents[0].verdict if incidents else None


def _find_unsaved(tower: Tower, incident_id: str) -> Incident | None:
    return next((one for one in tower.store_writer.unsaved(None) if one.id == incident_id), None)


async def read_incident(
    tower: Tower, incident_id: str, *, with_case: bool = False
) -> Incident | None:
    """Return the current state of one incident, stored or not yet; None if the id is unknown.

    The case of a large job has 29 MB: `with_case` reads it.
    """
    unsaved = _find_unsaved(tower, incident_id)
    if unsaved is not None and (unsaved.evidence is not None or not with_case):
        return unsaved
    store_writer = tower.store_writer
    try:
        stored = await store_writer.read(
            store_writer.store.incident(incident_id, with_case=with_case)
        )
    except StoreFailedError:
        if unsaved is None:
            raise
        return unsaved
    if unsaved is not None and stored is not None:
        return replace(unsaved, evidence=stored.evidence)
    return unsaved or stored


async def _read_incidents(
    tower: Tower, job: str | None, limit: int, with_drills: bool = True
) -> list[Incident]:
    """Return incidents, newest first: from the store, and those that are not stored yet.

    If the store cannot be read, return only the latter. Raises StoreFailedError if there are none.
    """
    without = "" if with_drills else PREFIX
    unsaved = [
        one
        for one in tower.store_writer.unsaved(job)
        if not without or not one.job.startswith(without)
    ]
    try:
        found = tower.store_writer.store.incidents(job, limit, without)
        stored = await tower.store_writer.read(found)
    except StoreFailedError:
        if not unsaved:
            raise
        stored = []
    known = {one.id: one for one in (*stored, *unsaved)}
    return sorted(known.values(), key=lambda one: one.opened_at, reverse=True)[:limit]


def _view_silence(tower: Tower, incident: Incident) -> SilenceView | None:
    is_open = incident.closed_at is None
    silence = tower.silences.find(subject_of(incident)) if is_open else None
    return view_silence(silence) if silence else None


def _summarize(tower: Tower, incident: Incident) -> IncidentSummary:
    return IncidentSummary(
        id=incident.id,
        job=incident.job,
        generation=incident.generation,
        status=incident.status,
        cause=incident.verdict.cause,
        suspect_ranks=format_ranks(suspect.rank for suspect in incident.verdict.suspects),
        summary=incident.verdict.summary,
        opened_at=rfc3339(incident.opened_at),
        closed_at=_when(incident.closed_at),
        ack=view_ack(incident.ack) if incident.ack else None,
        shared_cause=incident.verdict.shared_cause,
        shadow=incident.shadow,
        silence=_view_silence(tower, incident),
        outage=incident.identity.outage or None,
    )


def _view_entry(entry: VerdictEntry) -> VerdictEntryView:
    return VerdictEntryView(
        at=entry.at,
        cause=entry.cause,
        confidence=entry.confidence,
        suspect_ranks=entry.suspects,
        summary=entry.summary,
    )


def _when(wall: float | None) -> str | None:
    return None if wall is None else rfc3339(wall)
