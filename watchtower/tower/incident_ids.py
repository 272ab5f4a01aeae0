"""Incidents by the beginning of their id: people type few of the 26 characters."""

from __future__ import annotations

from watchtower.tower.store_writer import StoreFailedError
from watchtower.tower.tower import Tower

ID_LENGTH = 26
"""Characters of an id (ULID)."""

MAX_CANDIDATES = 5
"""Incidents named when an id fits several."""


class AmbiguousIdError(Exception):
    """Several incidents begin with what was given; the message names some of them."""

    def __init__(self, text: str, found: list[tuple[str, str]]) -> None:
        """`found` has the id and the job of each candidate, one more than is shown if there are
        more."""
        shown = found[:MAX_CANDIDATES]
        self.candidates = [ident for ident, _ in shown]
        names = ", ".join(f"{ident} (job {job})" for ident, job in shown)
        more = " and more" if len(found) > len(shown) else ""
        super().__init__(f"several incidents begin with {text!r}: {names}{more}")


async def find_incident_id(tower: Tower, text: str) -> str | None:
    """Return the id of the incident with this id or unique beginning of one; None without one.

    Lower case is accepted. Raises AmbiguousIdError, StoreFailedError.
    """
    if not text or len(text) > ID_LENGTH:
        return None
    found: dict[str, str] = {}
    for prefix in dict.fromkeys((text, text.upper())):
        found |= await _find(tower, prefix)
        if prefix in found:
            return prefix
    candidates = sorted(found.items())
    if len(candidates) > 1:
        raise AmbiguousIdError(text, candidates)
    return candidates[0][0] if candidates else None


async def _find(tower: Tower, prefix: str) -> dict[str, str]:
    """Return job by id of incidents that begin so, one more than are shown."""
    unsaved = {
        one.id: one.job for one in tower.store_writer.unsaved(None) if one.id.startswith(prefix)
    }
    try:
        store = tower.store_writer.store
        stored = await tower.store_writer.read(store.incident_ids(prefix, MAX_CANDIDATES + 1))
    except StoreFailedError:
        if not unsaved:
            raise
        stored = []
    return dict(sorted({**unsaved, **dict(stored)}.items())[: MAX_CANDIDATES + 1])
