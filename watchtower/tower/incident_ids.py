"""Finds incidents by a prefix of their id, so that people need not type 26 characters."""

from __future__ import annotations

from watchtower.tower.store_writer import StoreFailedError
from watchtower.tower.tower import Tower

ID_LENGTH = 26
"""Characters of an id (ULID)."""

MAX_CANDIDATES = 5
"""Incidents that the error of an ambiguous id lists."""


class AmbiguousIdError(Exception):
    """Several ids begin with the given text. The message lists some of them."""

    def __init__(self, text: str, found: list[tuple[str, str]]) -> None:
        """`found` has id and job of each candidate, and one more than `MAX_CANDIDATES` if there are
        more."""
        shown = found[:MAX_CANDIDATES]
        self.candidates = [ident for ident, _ in shown]
        names = ", ".join(f"{ident} (job {job})" for ident, job in shown)
        more = " and more" if len(found) > len(shown) else ""
        super().__init__(f"several incidents begin with {text!r}: {names}{more}")


async def find_incident_id(tower: Tower, text: str) -> str | None:
    """Return the id that is equal to `text` or uniquely begins with it; None if no id does.

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
    """Return the jobs of incidents whose id begins with `prefix`, by id, at most
    `MAX_CANDIDATES` + 1."""
    unsaved = {
        one.id: one.job for one in tower.store_writer.unsaved(None) if one.id.startswith(prefix)
    }
    try:
        stored = await tower.store_writer.incident_ids(prefix, MAX_CANDIDATES + 1)
    except StoreFailedError:
        if not unsaved:
            raise
        stored = []
    return dict(sorted({**unsaved, **dict(stored)}.items())[: MAX_CANDIDATES + 1])
