"""Incidents whose current state is not stored yet. While the store fails there may be many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from watchtower.incidents.incident import Incident
from watchtower.service.sharing import Quota

MAX_UNSAVED = 1000
"""Incidents that wait in memory while the store fails. Owners share this number. Further incidents
are only logged."""

MAX_EVIDENCE_BYTES = 256 * 1024 * 1024
"""Bytes of the cases of these incidents. Above it the largest case is dropped, and its incident is
stored without a case."""


class Unsaved:
    """The newest state of each waiting incident, by id."""

    def __init__(self) -> None:
        self._incidents: dict[str, Incident] = {}
        self._quota = Quota()
        self._evidence_bytes = 0

    def __contains__(self, ident: str) -> bool:
        return ident in self._incidents

    def __iter__(self) -> Iterator[Incident]:
        return iter(list(self._incidents.values()))

    def find(self, ident: str) -> Incident | None:
        """Return the waiting incident with this id; None if no such incident waits."""
        return self._incidents.get(ident)

    def put(self, incident: Incident) -> bool:
        """Add an incident, in place of an earlier state of it. Return False if there are too many.

        An incident without its case gets the case and the summary of the earlier state.
        """
        earlier = self._incidents.get(incident.id)
        if earlier is None:
            if not self._quota.has_room(incident.sharer, MAX_UNSAVED):
                return False
            self._quota.add(incident.sharer, 1)
        elif incident.evidence is None:
            incident = replace(incident, evidence=earlier.evidence, summary=earlier.summary)
        self._set(incident)
        while self._evidence_bytes > MAX_EVIDENCE_BYTES:
            largest = max(self._incidents.values(), key=_evidence_bytes)
            self._set(replace(largest, evidence=None, summary=None))
        return True

    def note_ack(self, incident: Incident) -> None:
        """Add a stored acknowledgement to the waiting incident, so that views show it."""
        waiting = self._incidents.get(incident.id)
        if waiting is not None:
            self._incidents[incident.id] = replace(waiting, ack=incident.ack)

    def remove(self, ident: str) -> None:
        """Remove an incident that is stored."""
        incident = self._incidents.pop(ident)
        self._evidence_bytes -= _evidence_bytes(incident)
        self._quota.add(incident.sharer, -1)

    def _set(self, incident: Incident) -> None:
        before = self._incidents.get(incident.id)
        self._evidence_bytes += _evidence_bytes(incident) - (
            _evidence_bytes(before) if before else 0
        )
        self._incidents[incident.id] = incident


def _evidence_bytes(incident: Incident) -> int:
    return len(incident.evidence or b"") + len(incident.summary or b"")
