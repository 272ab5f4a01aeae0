"""Counts the ranks of a job by what they report: steps behind the first rank, and phases.

The number of groups is bounded whatever the size of the job, because each group is a series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from watchtower.fleet.generation import RankRecord
from watchtower.fleet.pace import Pace

LAGS = {"0": 0, "1": 1, "2-4": 4, "5-9": 9}
MOST_LAG = "10+"
"""Groups of ranks by the number of steps behind the first rank: the highest number of each."""

MAX_PHASES_COUNTED = 8
NO_PHASE, OTHER_PHASES = "training", "other"
"""Names of the groups for ranks outside all phases, and for phases beyond the first ones."""

STEP_SAMPLES = 30
"""Samples of the step time, one per check, for the quantiles of the present step time."""


@dataclass(frozen=True, slots=True)
class RankCounts:
    """Numbers of live ranks with heartbeats."""

    lags: Mapping[str, int]
    """By steps behind the first rank: all groups, also empty ones."""
    phases: Mapping[str, int]
    """By phase: `known`, `NO_PHASE` and `OTHER_PHASES`."""
    known: tuple[str, ...]
    """The phases that have groups of their own."""


def count_ranks(records: Iterable[RankRecord], known: tuple[str, ...] = ()) -> RankCounts:
    """Count live ranks with heartbeats. `known` are the phases of an earlier count.

    The first `MAX_PHASES_COUNTED` phases of a job have groups. They never change, because a program
    that numbers its phases would otherwise make ever new series.
    """
    beats = [r.vitals.beat for r in records if r.ended_at is None and r.vitals.beat is not None]
    lags = dict.fromkeys((*LAGS, MOST_LAG), 0)
    steps = Counter(beat.step for beat in beats)
    first = max(steps, default=0)
    for step, count in steps.items():
        lags[_lag_of(first - step)] += count
    by_phase = Counter(beat.phase for beat in beats)
    for phase in by_phase:
        if phase and phase not in known and len(known) < MAX_PHASES_COUNTED:
            known = (*known, phase)
    phases = dict.fromkeys((NO_PHASE, *known, OTHER_PHASES), 0)
    for phase, count in by_phase.items():
        phases[phase if phase in known else OTHER_PHASES if phase else NO_PHASE] += count
    return RankCounts(lags, phases, known)


def step_quantiles(pace: Pace) -> dict[float, float]:
    """Return the median and the 95th percentile of the latest steps in seconds; {} without any."""
    samples = sorted(list(pace.plain)[-STEP_SAMPLES:])
    if not samples:
        return {}
    return {
        share: samples[min(len(samples) - 1, int(len(samples) * share))] for share in (0.5, 0.95)
    }


def _lag_of(steps: int) -> str:
    return next((name for name, most in LAGS.items() if steps <= most), MOST_LAG)
