"""Decides when the dumps of a stall are taken and when they are diagnosed.

The dumps of thousands of ranks must not all arrive at the same moment. A diagnosis must cover many
batches of them, because a diagnosis per batch would take too long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.jobs.effects import DumpsWanted, Effect
from watchtower.jobs.stall_context import StallContext

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

SECOND_DUMP = 0.6
"""New dumps are ordered when this share of the patience is over, so that an incident opens with
recent stacks."""

DUMPS_APART_S = 5.0
DUMPS_APART_JITTERS = 3.0
"""Seconds between two orders of dumps, plus this many times the jitter. A dump takes a second, or
twice the jitter, after a delay of up to the jitter, and an agent ignores an order within 3 s after
a dump. An order that is ignored would count as a dump with recent stacks."""

AGAIN_S = 4.0
"""While no rank is named, or collective logs are missing, dumps are ordered again after this many
seconds, and each time after twice as long. On a busy node a log may not be returned within a
second. Ranks of a job that was still at work have moved to the place where they hang."""


def jitter_s(ranks: int) -> float:
    """Return the seconds over which the agents of a job with `ranks` ranks spread their dumps."""
    if ranks < JITTER_FROM_RANKS:
        return 0.0
    return min(MAX_JITTER_S, JITTER_PER_RANK_S * ranks)


def dumps_apart_s(jitter: float) -> float:
    """Return the least seconds between two orders of dumps that take `jitter` seconds to begin."""
    return DUMPS_APART_S + DUMPS_APART_JITTERS * jitter


CHECK_GAP_S = 5.0
MAX_DOUBLINGS = 5
"""After an early check that found nothing the next one comes at the earliest after `CHECK_GAP_S`,
which each such check doubles, `MAX_DOUBLINGS` times at most: 160 s."""

CHECKS_FORGOTTEN_S = 600.0
"""Seconds without an early check after which earlier ones do not count."""


@dataclass(slots=True)
class EarlyChecks:
    """Limits the checks at a job that found nothing: it continued by itself."""

    _in_vain: int = 0
    _again_at: float = -math.inf

    def may_begin(self, now: float) -> bool:
        """Return whether the ranks may be checked now."""
        return now >= self._again_at

    def end(self, now: float) -> None:
        """Record that an early check ended, and found nothing."""
        if now - self._again_at > CHECKS_FORGOTTEN_S:
            self._in_vain = 0
        self._again_at = now + CHECK_GAP_S * 2 ** min(self._in_vain, MAX_DOUBLINGS)
        self._in_vain += 1


@dataclass(slots=True)
class DiagnosisTiming:
    """Decides when a diagnosis of one stall is due: the first one and each later one."""

    since: float
    """When the ranks were first dumped because of the stall."""
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
        is_late = now - self.since >= DUMP_WAIT_S + jitter_s(want)
        gap_s = DIAGNOSE_GAP_S + DIAGNOSE_GAP_PER_RANK_S * want
        return (missing <= 0 or is_death or is_late) and now - self._asked_at >= gap_s


@dataclass(slots=True)
class RepeatedDumps:
    """Decides when the ranks of a suspicion are dumped again."""

    _is_recent: bool = False
    """The dump before the incident was ordered."""
    _again_s: float = AGAIN_S
    """When dumps that may show more are ordered, in seconds after suspicion."""
    _ordered_s: float = -math.inf
    """The latest order, in seconds after suspicion."""

    def take_due(
        self, diagnosis: Diagnosis, ranks: int, waited_s: float, patience_s: float
    ) -> list[Effect]:
        """Return the dumps of `ranks` ranks to order now, this long after suspicion, and count them
        as ordered.

        One order may have both reasons.
        """
        if waited_s - self._ordered_s < dumps_apart_s(jitter_s(ranks)):
            return []
        is_late = waited_s >= SECOND_DUMP * patience_s and not self._is_recent
        is_decided = diagnosis.suspects and not diagnosis.lacks_logs
        is_again = waited_s >= self._again_s and not is_decided
        if not is_late and not is_again:
            return []
        self._ordered_s = waited_s
        self._is_recent = self._is_recent or is_late
        while self._again_s <= waited_s:
            self._again_s *= 2
        reason = "nothing decides yet" if is_again else "second dump"
        return [DumpsWanted(reason=reason, again=True)]
