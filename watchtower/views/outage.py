"""Outages as the API returns them: from the incidents of live jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from watchtower.incidents.incident import Incident
from watchtower.jobs.keeper import Keeper
from watchtower.views.moment import Moment
from watchtower.wire.verdict import Domain, SharedCause, Status
from watchtower.writing.times import rfc3339

LEAST_INCIDENTS = 2
"""Incidents of an outage. A single incident with a shared cause is listed as an incident only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageIncident:
    """One incident of an outage."""

    id: str
    job: str
    status: Status
    rank_count: int
    """World size of the job."""
    opened_at: str
    closed_at: str | None
    """Null while it is open."""
    acknowledged: bool
    """Whether a person works on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageView:
    """Incidents of several jobs with one shared cause, opened within two minutes."""

    id: str
    """Id of its first incident."""
    shared_cause: SharedCause
    domain: Domain
    """Whom to call, by its first incident."""
    opened_at: str
    closed_at: str | None
    """Null while an incident of it is open."""
    open_count: int
    """Open incidents."""
    rank_count: int
    """Ranks of all its jobs."""
    incidents: list[OutageIncident]
    """At most 512, oldest first."""


def list_outages(moment: Moment, limit: int) -> list[OutageView]:
    """Return the newest outages of live jobs: those with at least two incidents."""
    found = sorted(_group(moment).items(), reverse=True)
    return [_view(ident, members) for ident, members in found[:limit]]


def count_open_outages(moment: Moment) -> int:
    """Return the number of outages with an open incident that is not in shadow mode."""
    return sum(
        any(incident.closed_at is None and not incident.shadow for incident, _ in members)
        for members in _group(moment).values()
    )


def _group(moment: Moment) -> dict[str, list[tuple[Incident, Keeper]]]:
    groups: dict[str, list[tuple[Incident, Keeper]]] = {}
    for job in moment.live():
        incident = job.judged.incident
        if incident is not None and incident.identity.outage:
            groups.setdefault(incident.identity.outage, []).append((incident, job))
    return {ident: each for ident, each in groups.items() if len(each) >= LEAST_INCIDENTS}


def _view(ident: str, members: list[tuple[Incident, Keeper]]) -> OutageView:
    members = sorted(members, key=lambda each: (each[0].opened_at, each[0].id != ident))
    first = members[0][0]
    cause = first.verdict.shared_cause
    assert cause is not None, "an incident of an outage has a shared cause"
    return OutageView(
        id=ident,
        shared_cause=cause,
        domain=first.identity.domain,
        opened_at=rfc3339(first.opened_at),
        closed_at=_last_end(incident for incident, _ in members),
        open_count=sum(incident.closed_at is None for incident, _ in members),
        rank_count=sum(job.attempt.world_size for _, job in members),
        incidents=[
            OutageIncident(
                id=incident.id,
                job=incident.job,
                status=incident.status,
                rank_count=job.attempt.world_size,
                opened_at=rfc3339(incident.opened_at),
                closed_at=None if incident.closed_at is None else rfc3339(incident.closed_at),
                acknowledged=incident.ack is not None,
            )
            for incident, job in members
        ],
    )


def _last_end(incidents: Iterable[Incident]) -> str | None:
    ends = [incident.closed_at for incident in incidents]
    known = [end for end in ends if end is not None]
    return rfc3339(max(known)) if len(known) == len(ends) else None
