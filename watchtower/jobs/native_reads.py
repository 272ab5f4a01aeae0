"""Which ranks of an incident have their native functions read, without being asked.

The ranks are stopped for some tenths of a second, so each is read once, and only a few of them.
An order counts as a try of its ranks when an agent has collected it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

AGAIN_S = 15.0
"""Seconds after which an order is given again if no functions came. An agent answers within some
seconds, after another dump of the job."""

MAX_TRIES = 3
"""Orders for one rank of an incident. An agent of an older release never answers."""


@dataclass(slots=True)
class NativeReads:
    """The reads ordered for one incident."""

    incident: str = ""
    tries: dict[int, int] = field(default_factory=dict)
    """How often an order for each chosen rank was collected."""
    _ordered_at: float = float("-inf")

    def take_due(
        self, incident: str, unread: Sequence[int], most: int, now: float
    ) -> tuple[int, ...]:
        """Return the ranks to order now.

        `unread`: suspects in device waits without functions. At most `most` ranks of an incident
        are ever ordered.
        """
        if incident != self.incident:
            self.incident, self.tries, self._ordered_at = incident, {}, float("-inf")
        if now - self._ordered_at < AGAIN_S:
            return ()
        known = [rank for rank in unread if self.tries.get(rank, MAX_TRIES) < MAX_TRIES]
        new = [rank for rank in unread if rank not in self.tries]
        due = (*known, *new[: max(0, most - len(self.tries))])
        if due:
            self._ordered_at = now
        for rank in due:
            self.tries.setdefault(rank, 0)
        return due

    def count(self, ranks: Iterable[int]) -> None:
        """Count a try of these ranks, as an agent has collected an order for them."""
        for rank in ranks:
            if rank in self.tries:
                self.tries[rank] += 1
