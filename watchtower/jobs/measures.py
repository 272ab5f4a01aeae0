"""What is counted of a job: its steps over time, its totals, and its ranks by lag and phase."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from watchtower.jobs.pace import Pace
from watchtower.jobs.ranks import RankRecord
from watchtower.wire.verdict import Status

FINE_S, FINE_POINTS = 5.0, 180
COARSE_S, COARSE_POINTS = 300.0, 288
"""Seconds between two points, and points: 15 minutes, and 24 hours. Together 5 KB for a job."""

MAX_PHASES_KEPT = 15
"""Names of phases of one job that are kept. A program may number its phases; later ones count as
no phase."""

POINT_BYTES, RING_BYTES = 10, 512
"""Memory of one point, and of an empty history with its names."""

STATUSES = tuple(Status)
PLAIN = 0
"""Number of "no phase"."""

UNSEEN = STATUSES.index(Status.MONITORING_LOST) * 16
"""Mark of a point that is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """A job at one moment."""

    age_s: float
    step: int | None
    """Lowest step of its ranks; None before the first one."""
    status: Status
    phase: str
    """Phase of most of its ranks; empty in plain training."""


@dataclass(slots=True)
class _Points:
    """A ring with a fixed number of seconds between two points."""

    every_s: float
    most: int
    last_at: float = float("-inf")
    steps: array[int] = field(default_factory=lambda: array("q"))
    marks: bytearray = field(default_factory=bytearray)
    """Of each point: number of its status times 16, plus the number of its phase."""

    def is_due(self, now: float) -> bool:
        """Return whether the next point is due."""
        return now - self.last_at >= self.every_s

    def add(self, step: int, mark: int, now: float) -> None:
        """Add a point. Points that are missing, as while the machine slept, have no step."""
        if not self.steps:
            self.last_at = now - self.every_s
        passed = int((now - self.last_at) / self.every_s)
        missed = min(passed - 1, self.most)
        self.last_at += passed * self.every_s
        self.steps.extend([-1] * missed + [step])
        self.marks.extend([UNSEEN] * missed + [mark])
        del self.steps[: -self.most], self.marks[: -self.most]

    def clear(self) -> None:
        """Drop all points."""
        del self.steps[:], self.marks[:]


@dataclass(slots=True)
class StepHistory:
    """The points of one job, in two resolutions."""

    _fine: _Points = field(default_factory=lambda: _Points(FINE_S, FINE_POINTS))
    _coarse: _Points = field(default_factory=lambda: _Points(COARSE_S, COARSE_POINTS))
    _phases: list[str] = field(default_factory=lambda: [""])

    def is_due(self, now: float) -> bool:
        """Return whether `note` would add a point."""
        return self._fine.is_due(now)

    def note(self, step: int, status: Status, phase: str, now: float) -> None:
        """Add a point if one is due. `step` is -1 before the first step."""
        mark = STATUSES.index(status) * 16 + self._number_of(phase)
        for points in (self._fine, self._coarse):
            if points.is_due(now):
                points.add(step, mark, now)

    def _number_of(self, phase: str) -> int:
        if phase in self._phases:
            return self._phases.index(phase)
        if len(self._phases) > MAX_PHASES_KEPT:
            return PLAIN
        self._phases.append(phase)
        return len(self._phases) - 1

    def fine(self, now: float) -> list[StepPoint]:
        """Return the points of the last 15 minutes, oldest first."""
        return self._read(self._fine, now)

    def coarse(self, now: float) -> list[StepPoint]:
        """Return the points of the last day, oldest first."""
        return self._read(self._coarse, now)

    def _read(self, points: _Points, now: float) -> list[StepPoint]:
        newest = len(points.steps) - 1
        return [
            StepPoint(
                age_s=max(0.0, now - points.last_at) + (newest - place) * points.every_s,
                step=None if step < 0 else step,
                status=STATUSES[mark >> 4],
                phase=self._phases[mark & 15],
            )
            for place, (step, mark) in enumerate(zip(points.steps, points.marks, strict=True))
        ]

    @property
    def droppable_bytes(self) -> int:
        """Upper estimate of its memory, for the account."""
        points = len(self._fine.steps) + len(self._coarse.steps)
        names = 4 * sum(map(len, self._phases))
        return RING_BYTES + names + POINT_BYTES * points if points else 0

    def drop(self, excess: int) -> None:
        """Drop all points."""
        self._fine.clear()
        self._coarse.clear()
        self._phases = [""]


def find_phase(records: Iterable[RankRecord]) -> str:
    """Return the phase of more than half of the ranks with heartbeats; empty if there is none."""
    phases = Counter(r.vitals.beat.phase for r in records if r.vitals.beat is not None)
    if not phases:
        return ""
    phase, count = phases.most_common(1)[0]
    return phase if 2 * count > phases.total() else ""


NOT_WATCHED = (Status.ENDED, Status.SUSPENDED, Status.MONITORING_LOST)
"""Statuses in which a job cannot make steps, or is not seen."""


@dataclass(slots=True)
class JobTotals:
    """Totals since the job was first seen by this tower."""

    steps: int = 0
    """Steps that every rank with heartbeats has made. Steps that a later attempt makes again count
    again."""
    watched_s: float = 0.0
    lost_s: float = 0.0
    """Seconds in hangs, from the last step to the next one. At most `watched_s`."""
    _attempt: int = 0
    _step: int = -1
    _at: float | None = None
    _was_hung: bool = False

    @property
    def trained_share(self) -> float | None:
        """Share of the watched time in which the job was not hung; None before it was watched."""
        return 1 - self.lost_s / self.watched_s if self.watched_s > 0 else None

    def advance(
        self, attempt: int, step: int, status: Status, stalled_since: float | None, now: float
    ) -> float:
        """Add the time since the last call. Returns the seconds that are newly lost.

        `step` is the lowest step of all ranks, -1 before the first. `stalled_since` is the start of
        the current stall. It counts when the job becomes hung: a pause that ends before is not
        lost.
        """
        if attempt == self._attempt and self._step >= 0:
            self.steps += max(0, step - self._step)
        self._attempt, self._step = attempt, step
        passed_s = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        if status in NOT_WATCHED:
            self._was_hung = False
            return 0.0
        self.watched_s += passed_s
        if status is not Status.HUNG:
            self._was_hung = False
            return 0.0
        lost_s = passed_s
        if not self._was_hung and stalled_since is not None:
            lost_s = max(passed_s, now - stalled_since)
        self._was_hung = True
        lost_s = min(lost_s, self.watched_s - self.lost_s)
        self.lost_s += lost_s
        return lost_s


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
