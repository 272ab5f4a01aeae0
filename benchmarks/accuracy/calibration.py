"""Confidence against rightness: a table, a diagram and a score. Pure.

A point is one accusation or diagnosis that a person would have read: its confidence, and whether
it was right. The final verdict on a fault is one. Each accusation of an innocent rank that passed
is one too, and wrong: the pages showed it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

BANDS = ((0.0, 0.5), (0.5, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 1.01))
"""Ranges of confidence: from, and below. The last one includes 1.0."""
ALLOWED = 0.05
"""A band is calibrated if the share that is right is this close to the mean confidence."""
FEW = 20
"""Bands with fewer points say little: at 20, chance alone moves the share by 5 points or more."""
WIDTH = 50
"""Characters of the diagram from 0 to 1."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One diagnosis that was shown."""

    confidence: float
    is_right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The points in one range of confidence."""

    low: float
    high: float
    points: int
    right: int
    mean: float
    """Mean confidence of the points; 0.0 without any."""

    @property
    def share(self) -> float:
        """Return the share that was right; 0.0 without points."""
        return self.right / self.points if self.points else 0.0


def points_of(rows: Iterable[Row]) -> list[Point]:
    """Return the points of drills with a fault: their final diagnoses."""
    return [
        Point(
            confidence=row["verdict"]["confidence"],
            is_right=bool(row["right_rank"] and row["right_cause"]),
        )
        for row in rows
        if row["verdict"] and row["verdict"].get("cause")
    ]


def calibrate(points: Iterable[Point]) -> list[Band]:
    """Return every band, those without points too."""
    points = list(points)
    return [
        _fill(low, high, [point for point in points if low <= point.confidence < high])
        for low, high in BANDS
    ]


def brier(points: Iterable[Point]) -> float | None:
    """Return the mean square of confidence minus rightness; None without points.

    0 is perfect, 0.25 is a coin toss.
    """
    squares = [(point.confidence - point.is_right) ** 2 for point in points]
    return sum(squares) / len(squares) if squares else None


def render_calibration(points: list[Point]) -> str:
    """Render the table, the diagram and the score."""
    bands = [band for band in calibrate(points) if band.points]
    lines = ["| confidence | diagnoses | right | mean confidence | |", "|---|---|---|---|---|"]
    lines += [_line(band) for band in bands]
    score = brier(points)
    told = "no diagnosis was made" if score is None else f"{score:.3f}"
    diagram = [
        "```text",
        "confidence   0 " + "share that was right".center(WIDTH - 1) + " 1",
        *[_bar(band) for band in bands],
        "             `|` mean confidence, `#` share that was right",
        "```",
    ]
    return "\n".join([*lines, "", *diagram, "", f"Brier score (0 is perfect): {told}."])


def _fill(low: float, high: float, inside: list[Point]) -> Band:
    mean = sum(point.confidence for point in inside) / len(inside) if inside else 0.0
    right = sum(point.is_right for point in inside)
    return Band(low=low, high=high, points=len(inside), right=right, mean=mean)


def _line(band: Band) -> str:
    return (
        f"| {_name(band)} | {band.points} | {band.share:.0%} | {band.mean:.0%} | {_judge(band)} |"
    )


def _judge(band: Band) -> str:
    if band.points < FEW:
        return "few"
    difference = band.share - band.mean
    if abs(difference) <= ALLOWED:
        return "calibrated"
    return "too timid" if difference > 0 else "too sure"


def _bar(band: Band) -> str:
    filled = round(band.share * WIDTH)
    cells = ["#"] * filled + [" "] * (WIDTH - filled)
    cells[min(WIDTH - 1, round(band.mean * WIDTH))] = "|"
    return f"{_name(band)} {''.join(cells)}".rstrip()


def _name(band: Band) -> str:
    return f"{band.low:.2f} to {min(band.high, 1.0):.2f}"
