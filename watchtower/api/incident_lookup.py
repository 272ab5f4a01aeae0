"""Finds the incident that a path names."""

from __future__ import annotations

from typing import TypeVar

from fastapi import HTTPException

from watchtower.tower.incident_ids import find_incident_id
from watchtower.tower.tower import Tower

_Found = TypeVar("_Found")


async def find_known_id(tower: Tower, incident: str) -> str:
    """Return the id of an incident. Raises HTTPException 404, AmbiguousIdError."""
    return known(await find_incident_id(tower, incident), incident)


def known(found: _Found | None, incident: str) -> _Found:
    """Return `found`. Raises HTTPException 404 if it is None."""
    if found is None:
        raise HTTPException(404, f"there is no incident {incident!r}")
    return found
