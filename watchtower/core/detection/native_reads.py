"""Which ranks of an incident have their native functions read, without being asked.

The ranks are stopped for some tenths of a second, so each is read once, and only a few of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

AGAIN_S = 15.0
"""Seconds after which an order is given again if no functions came. An agent answers within some
seconds, but not during another dump of the job."""

MAX_TRIES = 2
"""Orders for one rank of an incident. An agent of an older release never answers."""


@dataclass(slots=True)
class NativeReads:
    """The reads ordered for one incident."""

    incident: str = ""
    tries: dict[int, int] = field(default_factory=dict)
    """How often each rank was ordered."""
    _ordered_at: float = float("-inf")

    def take_due(
        self, incident: str, unread: Sequence[int], most: int, now: float
    ) -> tuple[int, ...]:
        """Return the ranks to order now, and count them as ordered.

        `unread`: suspects in device waits without functions. At most `most` ranks of an incident
        are ever ordered.
        """
        if incident != self.incident:
            self.incident, self.tries, self._ordered_at = incident, {}, float("-inf")
        if now - self._ordered_at < AGAIN_S:
            return ()
        known = [rank for rank in unread if 0 < self.tries.get(rank, 0) < MAX_TRIES]
        new = [rank for rank in unread if rank not in self.tries]
        due = (*known, *new[: max(0, most - len(self.tries))])
        if due:
            self._ordered_at = now
        for rank in due:
            self.tries[rank] = self.tries.get(rank, 0) + 1
        return due
