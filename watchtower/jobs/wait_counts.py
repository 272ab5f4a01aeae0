"""Wait counts of a slow job: in how many samples did each rank wait for the others?

In a synchronous job all ranks step at the pace of the slowest rank, so that heartbeats do not
distinguish them. But fast ranks wait often, and the slow rank hardly ever waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from watchtower.evidence.case import MIN_SAMPLES
from watchtower.evidence.threads import index_stacks, was_waiting
from watchtower.jobs.dump_timing import dumps_apart_s, jitter_s
from watchtower.jobs.effects import DiagnosisWanted, DumpsWanted, Effect
from watchtower.wire.dumps import RankDump
from watchtower.wire.stacks import Stack

MAX_DUMPS = 8
"""Most dumps that are ordered for one count. Each has two rounds, so that a rank has 16 samples.
Even among 16,384 ranks that wait in two of three samples, no rank waits in none of 16 by chance."""

DUMPS_BEFORE_DIAGNOSIS = 3
"""The counts are diagnosed after this many dumps, and again after each further dump."""

SPREAD_S = 0.8
"""An agent begins a dump at a random moment of this many seconds, or of the jitter of a large job.
Agents receive orders with their reports, which come every second. Without this, all samples of a
job with steps of exactly 1 s would show the same moment of a step."""

LATER_S = 1.3
"""Each order comes this much later after the one before it than that one did. With 6 s between all
orders, all samples of a job with steps of 6 s showed the same moment of a step. The eighth order
comes 79 s after the first: an agent dumps a job six times a minute at most."""

REVIEW_S = 600.0
"""If a job is still slow after this, a new count begins: another rank may be the slow one."""


@dataclass(slots=True)
class WaitCount:
    """Number of samples of one rank, and of those in which it was waiting."""

    samples: int = 0
    waits: int = 0


@dataclass(slots=True)
class WaitCounts:
    """The counts of one period in which a job is slow. The caller calls `tick` every tick."""

    since: float
    by_rank: dict[int, WaitCount] = field(default_factory=dict)
    """It is bounded, because only ranks of the fleet's record are counted."""
    _ordered: int = 0
    _ordered_at: float = -math.inf
    _paused_until: float = -math.inf

    def tick(self, now: float) -> list[Effect]:
        """Return orders for dumps, and for a diagnosis of the dumps that have arrived."""
        if now < self._paused_until or now - self._ordered_at < self._apart_s():
            return []
        effects: list[Effect] = []
        if self._ordered >= DUMPS_BEFORE_DIAGNOSIS:
            effects.append(DiagnosisWanted())
        if self._ordered == MAX_DUMPS:
            self.settle(now)
            return effects
        if not self._ordered:
            self.by_rank.clear()
        self._ordered += 1
        self._ordered_at = now
        effects.append(DumpsWanted(reason="slow", again=True, spread_s=SPREAD_S))
        return effects

    def _apart_s(self) -> float:
        """Return the seconds between the latest order and the next one."""
        jitter = max(SPREAD_S, jitter_s(len(self.by_rank)))
        return dumps_apart_s(jitter) + LATER_S * (self._ordered - 1)

    def shares(self) -> dict[int, float]:
        """Return the share of its samples in which a rank waited, 0 to 1, by rank.

        Ranks with fewer than `MIN_SAMPLES` samples are left out.
        """
        counted = ((r, c) for r, c in self.by_rank.items() if c.samples >= MIN_SAMPLES)
        return {rank: count.waits / count.samples for rank, count in counted}

    def settle(self, now: float) -> None:
        """Pause the dumps: the slow rank is known, or more dumps would not show it."""
        self._ordered, self._paused_until = 0, now + REVIEW_S

    def take(self, dumps: Iterable[RankDump], stacks: Iterable[Stack]) -> None:
        """Count the ranks in these dumps. `stacks` are the stacks of the dumps."""
        known = index_stacks(stacks)
        for dump in dumps:
            waits = was_waiting(dump, known)
            if waits is not None:
                count = self.by_rank.setdefault(dump.rank, WaitCount())
                count.samples += 1
                count.waits += waits
