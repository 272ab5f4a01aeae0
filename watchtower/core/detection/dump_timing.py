"""Decides when the dumps of a stall are taken and when they are diagnosed.

The dumps of thousands of ranks must not all arrive at the same moment. A diagnosis must cover many
batches of them, because a diagnosis per batch would take too long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from watchtower.core.detection.stall_context import StallContext

JITTER_FROM_RANKS = 256
JITTER_PER_RANK_S = 0.001
MAX_JITTER_S = 2.0
"""Agents of a job with at least `JITTER_FROM_RANKS` ranks spread their dumps over
`JITTER_PER_RANK_S` times the number of ranks, but at most `MAX_JITTER_S`."""

DIAGNOSE_EVERY_S = 5.0
"""Seconds after which the diagnosis of a stall is repeated, with new movement and ages."""

DUMP_WAIT_S = 2.5
"""Missing dumps delay the first verdict by at most these seconds plus the jitter. A missing dump is
evidence too. The time is longer than the second between two rounds plus a report interval."""

DIAGNOSE_GAP_S = 0.4
DIAGNOSE_GAP_PER_RANK_S = 0.0001
"""Dumps that arrive after a diagnosis began are diagnosed together after this time. It grows with
the number of ranks, as the time of a diagnosis does."""


def jitter_s(ranks: int) -> float:
    """Return the seconds over which the agents of a job with `ranks` ranks spread their dumps."""
    if ranks < JITTER_FROM_RANKS:
        return 0.0
    return min(MAX_JITTER_S, JITTER_PER_RANK_S * ranks)


@dataclass(slots=True)
class DiagnosisTiming:
    """Decides when a diagnosis of one stall is due: the first one and each later one."""

    suspect_since: float
    _asked_at: float = -math.inf
    _asked_for: tuple[float, ...] | None = None
    """Evidence at the time of the latest request for a diagnosis."""

    def is_due(
        self, context: StallContext, *, is_death: bool, is_diagnosed: bool, now: float
    ) -> bool:
        """Return whether to request a diagnosis now; if so, the request is recorded.

        It is due when the evidence is new and complete enough, or `DIAGNOSE_EVERY_S` have passed.
        If the stall is a death (`is_death`), it does not wait for dumps.
        """
        missing = context.dumps_want - context.dumps_have
        is_ready = self.may_be_due(context.dumps_want, missing, is_death=is_death, now=now)
        is_new = is_ready and context.evidence != self._asked_for
        if not is_new and not (is_diagnosed and now - self._asked_at >= DIAGNOSE_EVERY_S):
            return False
        self._asked_at, self._asked_for = now, context.evidence
        return True

    def may_be_due(self, want: int, missing: int, *, is_death: bool, now: float) -> bool:
        """Return whether new evidence makes a diagnosis due now.

        `missing` of `want` ranks were not dumped yet. If this returns False, new dumps need no
        check of their job: with thousands of ranks a check takes as long as many batches of dumps.
        """
        is_late = now - self.suspect_since >= DUMP_WAIT_S + jitter_s(want)
        gap_s = DIAGNOSE_GAP_S + DIAGNOSE_GAP_PER_RANK_S * want
        return (missing <= 0 or is_death or is_late) and now - self._asked_at >= gap_s
