"""Incidents that were open when the tower's last run ended.

A job that is reported again continues its incident. The others are closed.
"""

from __future__ import annotations

from collections.abc import Iterable

from watchtower.incidents.incident import Incident
from watchtower.tower.clock import Clock
from watchtower.tower.incident_events import Change, IncidentFeed
from watchtower.tower.live import close
from watchtower.wire.verdict import Status

LEFT_OPEN_S = 600.0
"""Seconds that an incident of the last run stays open while its job is not reported."""


class LeftIncidents:
    """The latest incident of each job from the last run, until its job claims it."""

    def __init__(self, incidents: Iterable[Incident], feed: IncidentFeed, clock: Clock) -> None:
        """`incidents` are the open ones, and those in which a job ended, oldest first."""
        self._feed, self._clock, self._started_at = feed, clock, clock.now()
        self._left: dict[str, Incident] = {}
        for incident in incidents:
            self._close(self._left.pop(incident.job, None), Status.ENDED)
            self._left[incident.job] = incident

    def claim(self, job: str, generation: int) -> Incident | None:
        """Return the last run's incident of this attempt, open or ended; None without one.

        An open incident of another attempt is closed as ended.
        """
        left = self._left.pop(job, None)
        if left is None or left.generation == generation:
            return left
        self._close(left, Status.ENDED)
        return None

    def tick(self, now: float) -> None:
        """Close the incidents of jobs that were not reported for `LEFT_OPEN_S` seconds."""
        if self._left and now - self._started_at > LEFT_OPEN_S:
            for incident in self._left.values():
                self._close(incident, Status.MONITORING_LOST)
            self._left.clear()

    def _close(self, incident: Incident | None, status: Status) -> None:
        if incident is not None and incident.closed_at is None:
            closed = close(incident, status, self._clock.wall())
            self._feed.publish(Change.CLOSED, closed)
