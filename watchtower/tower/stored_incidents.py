"""Reads incidents: from the store, and those that are not stored yet."""

from __future__ import annotations

from dataclasses import replace

from watchtower.diagnoser.summaries import read_summary as read_summary_text
from watchtower.incidents.incident import Incident
from watchtower.incidents.incident_filter import IncidentFilter, accepts, position_of
from watchtower.tower.store_writer import StoreFailedError
from watchtower.tower.tower import Tower
from watchtower.views.case_summary import CaseSummary


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
        stored = await store_writer.incident(incident_id, with_case=with_case)
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
        stored = await tower.store_writer.incidents(chosen, limit + len(unsaved))
    except StoreFailedError:
        if not any(accepts(chosen, one) for one in unsaved):
            raise
        stored = []
    known = {one.id: one for one in (*stored, *unsaved)}
    accepted = [one for one in known.values() if accepts(chosen, one)]
    return sorted(accepted, key=position_of, reverse=True)[:limit]


async def read_summary(tower: Tower, incident_id: str) -> CaseSummary | None:
    """Return what pages show of an incident's case; None for an incident without a summary."""
    unsaved = _find_unsaved(tower, incident_id)
    body = unsaved.summary if unsaved is not None else None
    if body is None:
        store_writer = tower.store_writer
        body = await store_writer.summary(incident_id)
    return read_summary_text(body) if body is not None else None


def _find_unsaved(tower: Tower, incident_id: str) -> Incident | None:
    return next((one for one in tower.store_writer.unsaved(None) if one.id == incident_id), None)
