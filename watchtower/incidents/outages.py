"""Outages: incidents of several jobs with one shared cause that opened at about the same time.

An outage only groups. Each incident keeps its own identity, alert and end. So an incident that a
user forges cannot remove the incident of another user: it can only be listed beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.wire.verdict import SharedCause

WINDOW_S = 120.0
"""Seconds after the first incident of an outage in which others join it. The window does not move
with later incidents: a user who hangs one job after the other cannot keep an outage open, in which
the incident of another user would only be one more line."""

MAX_INCIDENTS = 512
"""Incidents of one outage. The next one begins another outage."""

MAX_OUTAGES = 4096
"""Outages that an incident may join: as many as live jobs. Above it, the oldest one is closed."""


@dataclass(slots=True)
class _Outage:
    id: str
    began_at: float
    count: int


class Outages:
    """The outages that a new incident may join, over all jobs.

    `now` is an argument: seconds of a monotonic clock.
    """

    def __init__(self) -> None:
        self._joinable: dict[SharedCause, _Outage] = {}
        """The latest outage of each cause, oldest first."""

    def join(self, incident: str, cause: SharedCause | None, now: float) -> str:
        """Return the outage of an incident that opens now: the id of the first incident in it.

        That is its own id if it is the first one. Without a shared cause it is an empty string.
        """
        if cause is None:
            return ""
        outage = self._joinable.get(cause)
        if outage is None or now - outage.began_at > WINDOW_S or outage.count >= MAX_INCIDENTS:
            outage = self._begin(incident, cause, now)
        outage.count += 1
        return outage.id

    def restore(self, outage: str, cause: SharedCause | None, age_s: float, now: float) -> None:
        """Count an incident of the tower's last run in its outage. Call it with the oldest first.

        `age_s`: seconds since the incident opened.
        """
        if cause is None or not outage:
            return
        known = self._joinable.get(cause)
        if known is None or known.id != outage:
            known = self._begin(outage, cause, now - max(0.0, age_s))
        known.count += 1

    def _begin(self, ident: str, cause: SharedCause, began_at: float) -> _Outage:
        self._joinable.pop(cause, None)
        if len(self._joinable) >= MAX_OUTAGES:
            del self._joinable[next(iter(self._joinable))]
        outage = self._joinable[cause] = _Outage(ident, began_at, 0)
        return outage
