"""Incidents as the API returns them: from the store, and with the live verdict if still open."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from watchtower.core.case_summary import CaseSummary
from watchtower.core.incident_filter import IncidentFilter
from watchtower.core.ranksets import format_ranks
from watchtower.diagnoser.summaries import read_summary as read_summary_text
from watchtower.store.incident_filter import accepts, position_of
from watchtower.store.rows import read_case
from watchtower.store.values import Incident
from watchtower.tower.acks import AckView, view_ack
from watchtower.tower.clock import rfc3339
from watchtower.tower.cursors import write_cursor
from watchtower.tower.feedback import FeedbackView, view_feedback
from watchtower.tower.outputs import OutputView, list_outputs
from watchtower.tower.owners import OwnedVerdict, find_owner, owner_of_incident
from watchtower.tower.silences import SilenceView, subject_of, view_silence
from watchtower.tower.stack_views import list_main_stacks, list_whole_stacks
from watchtower.tower.store_writer import StoreFailedError
from watchtower.tower.tower import Tower
from watchtower.tower.views import VerdictView, live_verdict, view_verdict
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
class IncidentList:
    """Incidents, newest first."""

    items: list[IncidentSummary]
    next_cursor: str | None
    """For the next page: the parameter `cursor` of the same list. Null on the last page."""


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
    feedback: FeedbackView | None
    """The answer of a person about the verdict; null without one."""
    outputs: list[OutputView]
    """The last lines of the suspects. Empty unless their agents may send them."""


async def list_incidents(tower: Tower, chosen: IncidentFilter, limit: int) -> IncidentList:
    """Return the newest incidents that meet the conditions."""
    incidents = await read_incidents(tower, chosen, limit + 1)
    shown = incidents[:limit]
    has_more = len(incidents) > limit
    return IncidentList(
        items=[_summarize(tower, incident) for incident in shown],
        next_cursor=write_cursor(position_of(shown[-1])) if has_more else None,
    )


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
        verdict=view_verdict(verdict_of(tower, incident)),
        verdicts=[_view_entry(entry) for entry in incident.verdicts],
        stacks=await _read_stacks(tower, incident_id),
        feedback=view_feedback(given) if (given := tower.feedback.find(incident.id)) else None,
        outputs=await list_outputs(tower, incident.id),
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
    found = await owned_verdict(tower, incident_id)
    return found.verdict if found else None


async def owned_verdict(tower: Tower, incident_id: str) -> OwnedVerdict | None:
    """Return the verdict of one incident and the owner of its job; None if the id is unknown."""
    incident = await read_incident(tower, incident_id, with_case=False)
    if incident is None:
        return None
    return OwnedVerdict(verdict=verdict_of(tower, incident), owner=owner_of_incident(incident))


def verdict_of(tower: Tower, incident: Incident) -> Verdict:
    """Return the live verdict of an open incident, else the stored one."""
    live = live_verdict(tower, incident.job)
    return live if live is not None and live.incident == incident.id else incident.verdict


async def job_verdict(tower: Tower, job: str) -> OwnedVerdict | None:
    """Return the verdict of a live job, else of its latest incident; None without either."""
    live = live_verdict(tower, job)
    if live is not None:
        return OwnedVerdict(verdict=live, owner=find_owner(tower, job))
    for last in await read_incidents(tower, IncidentFilter(job=job), 1):
        return OwnedVerdict(verdict=last.verdict, owner=owner_of_incident(last))
    return None


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


async def read_incidents(tower: Tower, chosen: IncidentFilter, limit: int) -> list[Incident]:
    """Return incidents, newest first: from the store, and those that are not stored yet.

    If the store cannot be read, return only the latter. Raises StoreFailedError if there are none.
    """
    unsaved = tower.store_writer.unsaved(None)
    try:
        # A stored incident may not meet the conditions any more: its new state is not stored yet.
        found = tower.store_writer.store.incidents(chosen, limit + len(unsaved))
        stored = await tower.store_writer.read(found)
    except StoreFailedError:
        if not any(accepts(chosen, one) for one in unsaved):
            raise
        stored = []
    known = {one.id: one for one in (*stored, *unsaved)}
    accepted = [one for one in known.values() if accepts(chosen, one)]
    return sorted(accepted, key=position_of, reverse=True)[:limit]


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
