"""Finds the incidents of a list: by a condition in SQL, and among incidents in memory.

An incident that is not stored yet must be found as well as a stored one. Both forms of a condition
are therefore in this file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from watchtower.incidents.incident_filter import IncidentFilter, Position
from watchtower.store.values import Incident
from watchtower.wire.drills import PREFIX, is_drill

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


def as_sql(chosen: IncidentFilter) -> tuple[str, list[object]]:
    """Return the same conditions as a WHERE clause, and its values."""
    parts = list(_conditions(chosen))
    values = [value for _, values in parts for value in values]
    return f"WHERE {' AND '.join(text for text, _ in parts)}" if parts else "", values


def _conditions(chosen: IncidentFilter) -> Iterator[tuple[str, tuple[object, ...]]]:
    columns = {
        "job": chosen.job,
        "status": chosen.status.value if chosen.status else "",
        "cause": chosen.cause.value if chosen.cause else "",
        "domain": chosen.domain.value if chosen.domain else "",
        "job_user": chosen.user,
    }
    for column, value in columns.items():
        if value:
            yield f"{column} = ?", (value,)
    for column, value in {"node": chosen.node, "place": chosen.where}.items():
        if value:
            yield f"id IN (SELECT incident FROM suspects WHERE {column} = ?)", (value,)
    if chosen.since is not None:
        yield "opened_at >= ?", (chosen.since,)
    if (last := chosen.before) is not None:
        # The first condition is implied. It lets an index find the position.
        condition = "opened_at <= ? AND (opened_at < ? OR id < ?)"
        yield condition, (last.opened_at, last.opened_at, last.id)
    if chosen.drills is not None:
        same = "=" if chosen.drills else "<>"
        yield f"substr(job, 1, ?) {same} ?", (len(PREFIX), PREFIX)


def position_of(incident: Incident) -> Position:
    """Return the position of an incident in all lists."""
    return Position(opened_at=incident.opened_at, id=incident.id)


def places_of(incident: Incident) -> tuple[tuple[str, str], ...]:
    """Return the nodes and lines of the ranks that the verdict names, at most `MAX_PLACES`."""
    suspects = incident.verdict.suspects
    places = dict.fromkeys((suspect.node, suspect.where or "") for suspect in suspects)
    return tuple(places)[:MAX_PLACES]


def filter_columns(incident: Incident) -> tuple[str, str, str]:
    """Return the columns cause, domain and job_user, by which incidents are found."""
    verdict = incident.verdict
    cause = verdict.cause.value if verdict.cause else ""
    domain = verdict.domain.value if verdict.domain else ""
    return cause, domain, incident.identity.user


def save_places(db: sqlite3.Connection, incident: Incident) -> None:
    """Store the nodes and lines by which an incident is found, in place of earlier ones."""
    db.execute("DELETE FROM suspects WHERE incident = ?", (incident.id,))
    db.executemany(
        "INSERT INTO suspects (incident, node, place) VALUES (?, ?, ?)",
        [(incident.id, *place) for place in places_of(incident)],
    )
