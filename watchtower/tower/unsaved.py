"""Incidents that the store does not have yet as they are now; while it fails there may be many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from watchtower.core.fleet.quotas import Quota
from watchtower.store.values import Ack, Incident

MAX_UNSAVED = 1000
"""Incidents that wait in memory while the store fails, shared by owners; of further ones only the
log tells."""

MAX_EVIDENCE_BYTES = 256 * 1024 * 1024
"""Cases that wait with them. Beyond it the largest one is dropped, and its incident is stored
without."""


class Unsaved:
    """The newest state of each incident that waits, by id."""

    def __init__(self) -> None:
        self._incidents: dict[str, Incident] = {}
        self._owners: dict[str, str] = {}
        self._quota = Quota()
        self._evidence_bytes = 0

    def __contains__(self, ident: str) -> bool:
        return ident in self._incidents

    def __iter__(self) -> Iterator[Incident]:
        return iter(list(self._incidents.values()))

    def find(self, ident: str) -> Incident | None:
        """Return what waits of this id."""
        return self._incidents.get(ident)

    def put(self, incident: Incident, owner: str) -> bool:
        """Add an incident, or replace what waits of it. Return False if there is no room.

        An incident without its case gets the case that waits already.
        """
        earlier = self._incidents.get(incident.id)
        if earlier is None:
            if not self._quota.has_room(owner, MAX_UNSAVED):
                return False
            self._owners[incident.id] = owner
            self._quota.add(owner, 1)
        elif incident.evidence is None:
            incident = replace(incident, evidence=earlier.evidence)
        self._set(incident)
        while self._evidence_bytes > MAX_EVIDENCE_BYTES:
            largest = max(self._incidents.values(), key=_evidence_bytes)
            self._set(replace(largest, evidence=None))
        return True

    def note_ack(self, ident: str, ack: Ack) -> None:
        """Add an ack that is stored already to what waits, which would be shown without it."""
        waiting = self._incidents.get(ident)
        if waiting is not None:
            self._incidents[ident] = replace(waiting, ack=ack)

    def remove(self, ident: str) -> None:
        """Take out an incident that is stored."""
        self._evidence_bytes -= _evidence_bytes(self._incidents.pop(ident))
        self._quota.add(self._owners.pop(ident), -1)

    def _set(self, incident: Incident) -> None:
        before = self._incidents.get(incident.id)
        self._evidence_bytes += _evidence_bytes(incident) - (
            _evidence_bytes(before) if before else 0
        )
        self._incidents[incident.id] = incident


def _evidence_bytes(incident: Incident) -> int:
    return len(incident.evidence or b"")
