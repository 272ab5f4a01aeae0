"""Which incidents a list contains, and where a page of it begins. Values only."""

from __future__ import annotations

from dataclasses import dataclass

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
