"""Incidents as the API returns them: from the store, and with the live verdict if still open."""

from __future__ import annotations

from dataclasses import dataclass, replace

from watchtower.core.case import Case
from watchtower.core.ranksets import format_ranks
from watchtower.store.rows import read_case
from watchtower.store.values import Incident
from watchtower.tower.acks import AckView, view_ack
from watchtower.tower.clock import rfc3339
from watchtower.tower.outputs import OutputView, list_outputs
from watchtower.tower.silences import SilenceView, subject_of, view_silence
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
    outputs: list[OutputView]
    """The last lines of the suspects. Empty unless their agents may send them."""


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
        stacks=_stacks(case) if (case := read_case(incident)) else [],
        outputs=await list_outputs(tower, incident.id),
    )


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


async def read_incident(
    tower: Tower, incident_id: str, *, with_case: bool = True
) -> Incident | None:
    """Return the current state of one incident, stored or not yet; None if the id is unknown.

    A case of 16,384 ranks has 29 MB: read it only if it is needed.
    """
    unsaved = next((one for one in tower.store_writer.unsaved(None) if one.id == incident_id), None)
    if unsaved is not None and (unsaved.evidence is not None or not with_case):
        return unsaved
    reading = tower.store_writer.store.incident(incident_id, with_case=with_case)
    try:
        stored = await tower.store_writer.read(reading)
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


def _stacks(case: Case) -> list[StackView]:
    """Return the distinct main-thread stacks of the last dumps, rarest first."""
    frames = {stack.digest: stack.frames for stack in case.stacks}
    ranks: dict[str, list[int]] = {}
    for rank in case.ranks:
        for thread in rank.dumps[-1].threads if rank.dumps else ():
            if thread.main and thread.digest in frames:
                ranks.setdefault(thread.digest, []).append(rank.rank)
    rarest = sorted(ranks.items(), key=lambda item: (len(item[1]), item[1]))
    return [
        StackView(ranks=format_ranks(members), frames=list(frames[digest]))
        for digest, members in rarest
    ]


def _when(wall: float | None) -> str | None:
    return None if wall is None else rfc3339(wall)
