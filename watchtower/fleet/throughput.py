"""Throughput: the time of a job for many steps, whatever the single steps take.

A loop that queues work on its GPU runs ahead until the queue is full, then waits: some quick steps,
then a long one. If the GPU becomes slower, only the long ones change, and `pace` takes them for
pauses. Over some steps more, the quick and the long ones add up.

Pauses add up, too. One pause must not make a job slow, nor may some that come by chance. So a round
of steps counts at most `MAX_ROUND` usual ones, and each of three groups of rounds must be slow.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import fmean, median

from watchtower.fleet.slowness import BACK_TO_USUAL, NOT_SLOWER, Latest, Slowness

ROUND_STEPS = 4
ROUND_S = 4.0
"""Least steps and seconds of a round. Hosts run up to three steps ahead, and the reports of two
nodes are up to a second apart."""

GROUP = 4
GROUPS = 3
"""Rounds of a group, and groups that must be slow: together at least 48 steps."""

MIN_BASELINE_ROUNDS = 8
"""Rounds needed before these to know the usual length."""

MAX_BASELINE_ROUNDS = 32
"""Rounds of which the usual length is the mean: at least 128 steps."""

MAX_ROUND = 3.0
"""A round counts at most this many usual ones. In simulated jobs of 600 steps of 1 s with pauses of
20 s or 60 s at 5 % of the steps, at random, 3 of 800 were slow at some time. With 3.5: 203."""


@dataclass(slots=True)
class Throughput:
    """The seconds per step of one job over rounds of steps. `take` adds a tick."""

    slowness: Slowness = field(default_factory=Slowness)
    latest: Latest = NOT_SLOWER
    """The latest group alone. It shows that a slow job is not back at its usual pace. It is too
    short to call a job slow."""
    _rounds: deque[float] = field(
        default_factory=lambda: deque(maxlen=MAX_BASELINE_ROUNDS + GROUPS * GROUP)
    )
    """Seconds per step of each round."""
    _step: int = -1
    """Step with which the present round began, -1 before the first."""
    _began_at: float = float("-inf")

    def is_due(self, now: float) -> bool:
        """Return whether a round may end now."""
        return now - self._began_at >= ROUND_S

    def interrupt(self) -> None:
        """Drop the present round: a phase belongs to no round."""
        self._step = -1

    def take(self, step: int, now: float) -> None:
        """Take the step that all ranks have made; -1 before the first."""
        if step < self._step or self._step < 0:
            self._step, self._began_at = step, now  # a loop may count from zero in each epoch
            return
        steps, seconds = step - self._step, now - self._began_at
        if steps < ROUND_STEPS or not self.is_due(now):
            return
        self._step, self._began_at = step, now
        self._rounds.append(seconds / steps)
        self._compare(seconds)

    def _compare(self, seconds: float) -> None:
        rounds = list(self._rounds)
        split = max(MIN_BASELINE_ROUNDS, len(rounds) - GROUPS * GROUP)
        before, recent = rounds[:split], rounds[split:]
        if len(recent) < GROUP:
            return
        if not self.slowness.is_slow:
            self.slowness.usual_s = _mean(before, median(before))
        usual_s = self.slowness.usual_s
        groups = [_mean(recent[at : at + GROUP], usual_s) for at in range(0, len(recent), GROUP)]
        latest_s = _mean(recent[-GROUP:], usual_s)
        self.latest = Latest(latest_s / usual_s, latest_s)
        if len(recent) < GROUPS * GROUP:
            return
        present_s = min(groups)
        if present_s >= BACK_TO_USUAL * usual_s:
            present_s = max(present_s, median(recent))  # it may be more than a round counts
        if self.slowness.take(present_s, seconds):
            self._rounds.clear()
            self._rounds.extend(recent)


def _mean(rounds: list[float], usual_s: float) -> float:
    return fmean(min(each, MAX_ROUND * usual_s) for each in rounds)
