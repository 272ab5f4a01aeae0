"""Which incidents a list contains, and where a page of it begins.

Conditions are checked here for incidents in memory, and in SQL by the store. Both give the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.incidents.incident import Incident
from watchtower.wire.drills import is_drill
from watchtower.wire.verdict import Cause, Domain, Status


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Position:
    """The position of an incident in all lists. It never changes. Newer ones are greater."""

    opened_at: float
    """UNIX seconds."""
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentFilter:
    """Conditions that an incident must meet. An empty value is no condition."""

    job: str = ""
    status: Status | None = None
    cause: Cause | None = None
    """Cause of the current verdict."""
    domain: Domain | None = None
    """Whom to call by the current verdict."""
    node: str = ""
    """Node of a rank that the current verdict names."""
    where: str = ""
    """Line of a rank that the current verdict names, such as "data.py:88 in __next__"."""
    user: str = ""
    """User of the job at the opening."""
    since: float | None = None
    """UNIX seconds: opened then or later."""
    before: Position | None = None
    """Older than the incident at this position."""
    drills: bool | None = None
    """True: only incidents of drills. False: none of drills."""


ALL_INCIDENTS = IncidentFilter()


MAX_PLACES = 256
"""Pairs of node and line of one incident by which it is found. A verdict may name thousands of
ranks. Those of one node are usually at one line."""


def accepts(chosen: IncidentFilter, incident: Incident) -> bool:
    """Return whether an incident meets all conditions."""
    verdict, places = incident.verdict, places_of(incident)
    return (
        chosen.job in ("", incident.job)
        and chosen.status in (None, incident.status)
        and chosen.cause in (None, verdict.cause)
        and chosen.domain in (None, verdict.domain)
        and chosen.node in ("", *(node for node, _ in places))
        and chosen.where in ("", *(where for _, where in places))
        and chosen.user in ("", incident.identity.user)
        and (chosen.since is None or incident.opened_at >= chosen.since)
        and (chosen.before is None or position_of(incident) < chosen.before)
        and chosen.drills in (None, is_drill(incident.job))
    )


def position_of(incident: Incident) -> Position:
    """Return the position of an incident in all lists."""
    return Position(opened_at=incident.opened_at, id=incident.id)


def places_of(incident: Incident) -> tuple[tuple[str, str], ...]:
    """Return the nodes and lines of the ranks that the verdict names, at most `MAX_PLACES`."""
    suspects = incident.verdict.suspects
    places = dict.fromkeys((suspect.node, suspect.where or "") for suspect in suspects)
    return tuple(places)[:MAX_PLACES]
