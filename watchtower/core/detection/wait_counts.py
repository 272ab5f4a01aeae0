"""Wait counts of a slow job: in how many samples did each rank wait for the others?

A step of a synchronous job takes as long as that of its slowest rank. All ranks therefore beat at
the same pace, and heartbeats do not distinguish them. But fast ranks wait, and the slow rank waits
hardly ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from watchtower.core.detection.effects import DiagnosisWanted, DumpsWanted, Effect
from watchtower.core.reading.threads import index_stacks, was_waiting
from watchtower.wire.dumps import RankDump
from watchtower.wire.stacks import Stack

MAX_DUMPS = 8
"""Dumps ordered at most for one count, of two rounds each. Among 16,384 ranks that wait in two of
three samples, a rank that waits in none of sixteen is not there by chance."""

FIRST_ANSWER = 3
"""After so many dumps, and after each one that follows, a diagnosis is made of the counts."""

DUMP_EVERY_S = 6.0
"""Between two of them: a dump takes a second, and an agent does not repeat one that just ended."""

REVIEW_S = 600.0
"""A job that stays slow is counted anew after this: another rank may be the slow one by then."""


@dataclass(slots=True)
class WaitCount:
    """Samples of one rank, and in how many of them the rank was waiting."""

    samples: int = 0
    waits: int = 0


@dataclass(slots=True)
class WaitCounts:
    """One period of slowness. `tick` is called every tick while it lasts."""

    since: float
    by_rank: dict[int, WaitCount] = field(default_factory=dict)
    """It is bounded, because only ranks of the fleet's record are counted."""
    _ordered: int = 0
    _next_at: float = float("-inf")

    def tick(self, now: float) -> list[Effect]:
        """Order dumps, and a diagnosis when they have arrived."""
        if now < self._next_at:
            return []
        self._next_at = now + DUMP_EVERY_S
        effects: list[Effect] = []
        if self._ordered >= FIRST_ANSWER:
            effects.append(DiagnosisWanted())
        if self._ordered == MAX_DUMPS:
            self.settle(now)
            return effects
        if not self._ordered:
            self.by_rank.clear()
        self._ordered += 1
        effects.append(DumpsWanted(reason="slow", again=True))
        return effects

    def settle(self, now: float) -> None:
        """Order no dumps for a while: the slow rank is known, or more dumps would not show it."""
        self._ordered, self._next_at = 0, now + REVIEW_S

    def take(self, dumps: Iterable[RankDump], stacks: Iterable[Stack]) -> None:
        """Count the ranks of one batch, with the stacks of these dumps."""
        known = index_stacks(stacks)
        for dump in dumps:
            waits = was_waiting(dump, known)
            if waits is not None:
                count = self.by_rank.setdefault(dump.rank, WaitCount())
                count.samples += 1
                count.waits += waits
