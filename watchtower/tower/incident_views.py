"""Incidents as the API returns them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from watchtower.incidents.incident import Incident
from watchtower.incidents.incident_filter import IncidentFilter, position_of
from watchtower.store.values import read_case
from watchtower.tower.acks import AckView, view_ack
from watchtower.tower.cursors import write_cursor
from watchtower.tower.feedback import FeedbackView, view_feedback
from watchtower.tower.incident_verdicts import verdict_of
from watchtower.tower.outputs import OutputView, list_outputs
from watchtower.tower.silences import SilenceView, subject_of, view_silence
from watchtower.tower.stack_views import list_main_stacks, list_whole_stacks
from watchtower.tower.stored_incidents import read_incident, read_incidents, read_summary
from watchtower.tower.tower import Tower
from watchtower.tower.views import VerdictView, view_verdict
from watchtower.wire.stacks import Frame
from watchtower.wire.verdict import Cause, SharedCause, Status, VerdictEntry
from watchtower.writing.ranksets import format_ranks
from watchtower.writing.times import rfc3339


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
