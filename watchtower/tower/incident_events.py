"""Events of incidents, and the listeners that receive them.

An incident is opened, its verdict may change, an operator may acknowledge it, and it is closed. The
tower publishes each of these events once, in order. The composition root names the listeners.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from watchtower.incidents.incident import Incident

log = logging.getLogger("watchtower.tower")


class Change(Enum):
    """The kinds of events of an incident."""

    OPENED = "opened"
    """A new incident. It is closed already if it is about the end of a job."""
    UPDATED = "updated"
    """Its verdict or its aftermath changed."""
    ACKNOWLEDGED = "acknowledged"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentEvent:
    """One change of an incident, and the incident after it."""

    change: Change
    incident: Incident


class IncidentListener(Protocol):
    """Receives the events of all incidents, on the tower's event loop."""

    def note(self, event: IncidentEvent) -> None:
        """Process one event. It must return at once: no input, no output, no waiting."""


class IncidentFeed:
    """Passes events to the listeners, in the order of the listeners."""

    def __init__(self, listeners: Sequence[IncidentListener]) -> None:
        self._listeners = tuple(listeners)
        self.count = 0
        """Number of events so far. While it is the same, no closed incident has changed."""

    def publish(self, change: Change, incident: Incident | None) -> None:
        """Pass an event to every listener. An error of one does not affect the others.

        `incident` is None if there was nothing to change. Then there is no event.
        """
        if incident is None:
            return
        self.count += 1
        event = IncidentEvent(change=change, incident=incident)
        for listener in self._listeners:
            try:
                listener.note(event)
            except Exception:  # the other listeners need the event, too
                name = type(listener).__name__
                log.exception("%s cannot process incident %s", name, incident.id)
