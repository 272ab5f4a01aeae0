"""The census of a slow job: of how many looks at each rank was it waiting for the others?

Steps of a synchronous job are as long as its slowest rank's, so all ranks beat at the same pace and
no heartbeat tells them apart. But whoever is fast waits, and the slow one hardly ever does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from watchtower.core.detection.effects import DiagnosisWanted, DumpsWanted, Effect
from watchtower.core.reading.threads import index_stacks, was_waiting
from watchtower.wire.dumps import RankDump
from watchtower.wire.stacks import Stack

LOOKS = 8
"""Dumps ordered at most for one census, of two rounds each: among 16,384 ranks that wait in two of
three looks, one that waits in none of sixteen is no chance."""

FIRST_ANSWER = 3
"""After so many dumps, and after each one that follows, it is asked whether they tell already."""

LOOK_EVERY_S = 6.0
"""Between two of them: a dump takes a second, and agents take one that just ended for the next."""

REVIEW_S = 600.0
"""A job that stays slow is counted anew after this: another rank may be the slow one by then."""


@dataclass(slots=True)
class Tally:
    """Looks at one rank, and how many of them found it waiting."""

    looks: int = 0
    waits: int = 0


@dataclass(slots=True)
class Census:
    """One spell of slowness. `step` is called every tick while it lasts."""

    since: float
    tallies: dict[int, Tally] = field(default_factory=dict)
    """By rank; only ranks of the fleet's record are counted, which bounds it."""
    _ordered: int = 0
    _next_at: float = float("-inf")

    def step(self, now: float) -> list[Effect]:
        """Order looks, and a diagnosis when they are in."""
        if now < self._next_at:
            return []
        self._next_at = now + LOOK_EVERY_S
        effects: list[Effect] = []
        if self._ordered >= FIRST_ANSWER:
            effects.append(DiagnosisWanted())
        if self._ordered == LOOKS:
            self.settle(now)
            return effects
        if not self._ordered:
            self.tallies.clear()
        self._ordered += 1
        effects.append(DumpsWanted(reason="slow", again=True))
        return effects

    def settle(self, now: float) -> None:
        """Look no further for a while: the answer is known, or more looks would not give it."""
        self._ordered, self._next_at = 0, now + REVIEW_S

    def take(self, dumps: Iterable[RankDump], stacks: Iterable[Stack]) -> None:
        """Count the ranks of one batch, whose stacks these are."""
        known = index_stacks(stacks)
        for dump in dumps:
            waits = was_waiting(dump, known)
            if waits is not None:
                tally = self.tallies.setdefault(dump.rank, Tally())
                tally.looks += 1
                tally.waits += waits
