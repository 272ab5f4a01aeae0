"""When the dumps of a stall are taken and when they are diagnosed.

The dumps of thousands of ranks must not all come at one moment, nor be diagnosed batch by batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from watchtower.core.detection.stall_context import StallContext

JITTER_FROM_RANKS = 256
JITTER_PER_RANK_S = 0.001
MAX_JITTER_S = 2.0
"""The agents of a job with so many ranks or more spread their dumps over this time."""

DIAGNOSE_EVERY_S = 5.0
"""The diagnosis of a stall is repeated this often, with fresh movement and ages."""

DUMP_WAIT_S = 2.5
"""Missing dumps delay the first verdict by at most this and the jitter: a rank that does not answer
is evidence too. It is longer than the second between two rounds, plus a report interval."""

DIAGNOSE_GAP_S = 0.4
DIAGNOSE_GAP_PER_RANK_S = 0.0001
"""Dumps that come in after a diagnosis began are diagnosed together after this time. A diagnosis
takes longer the more ranks there are; so does the gap."""


def jitter_s(ranks: int) -> float:
    """Return the seconds over which the agents of a job with `ranks` ranks spread their dumps."""
    if ranks < JITTER_FROM_RANKS:
        return 0.0
    return min(MAX_JITTER_S, JITTER_PER_RANK_S * ranks)


@dataclass(slots=True)
class DiagnosisTiming:
    """Decides when the diagnosis of one stall is due, the first time and again."""

    suspect_since: float
    _asked_at: float = -math.inf
    _asked_for: tuple[float, ...] | None = None
    """The evidence that the latest diagnosis was asked for."""

    def is_due(
        self, context: StallContext, *, says_enough: bool, is_diagnosed: bool, now: float
    ) -> bool:
        """Tell whether to diagnose now: the evidence is new and complete enough, or it is time to
        repeat it. A stall that `says_enough` by itself, a death, does not wait for dumps.

        The caller diagnoses when this is true.
        """
        wait_s = DUMP_WAIT_S + jitter_s(context.dumps_want)
        is_late = now - self.suspect_since >= wait_s
        is_ready = context.is_complete or says_enough or is_late
        waited_s = now - self._asked_at
        gap_s = DIAGNOSE_GAP_S + DIAGNOSE_GAP_PER_RANK_S * context.dumps_want
        is_new = is_ready and context.evidence != self._asked_for and waited_s >= gap_s
        if not is_new and not (is_diagnosed and waited_s >= DIAGNOSE_EVERY_S):
            return False
        self._asked_at, self._asked_for = now, context.evidence
        return True
