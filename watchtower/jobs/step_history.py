"""The steps of a job over time, for its chart: a fine ring of 15 minutes and a coarse one of a day.

Both are soft state: a restarted tower begins them again.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from watchtower.fleet.generation import RankRecord
from watchtower.wire.verdict import Status

FINE_S, FINE_POINTS = 5.0, 180
COARSE_S, COARSE_POINTS = 300.0, 288
"""Seconds between two points, and points: 15 minutes, and 24 hours. Together 5 KB for a job."""

MAX_PHASES = 15
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
        if len(self._phases) > MAX_PHASES:
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
