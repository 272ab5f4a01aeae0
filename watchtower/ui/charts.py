"""Charts as SVG: lines and shaded times in a box of `WIDTH` x `HEIGHT`. The templates write the
elements. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from watchtower.writing.times import read_time, rfc3339

WIDTH, HEIGHT = 300, 48

MARGIN = 3
"""Space above and below the lines, so that a line at the limit is not cut."""

MAX_COLUMNS = 150
"""Points of one line. More could not be seen, and a page has a dozen lines."""

MAX_GAP = 3
"""Columns without a value that a line crosses. Over more, nothing was measured, and it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart."""

    kind: str
    """Its class: "suspect", "peers", "steps"."""
    pieces: list[str]
    """Points of each piece, as in the attribute `points` of a polyline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What the edges of a chart stand for."""

    low: str
    """"0 W"."""
    high: str
    begins_at: str
    """RFC 3339."""
    ends_at: str


def make_scale(low: str, high: str, ends_at: str, length_s: float) -> Scale:
    """Return the scale of a chart that ends at `ends_at` (RFC 3339) and is `length_s` long."""
    begins_at = rfc3339(read_time(ends_at).timestamp() - length_s)
    return Scale(low=low, high=high, begins_at=begins_at, ends_at=ends_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A shaded time."""

    kind: str
    """Its class: "stall", "phase"."""
    x: float
    width: float
    label: str


def shrink(values: Sequence[float | None], columns: int = MAX_COLUMNS) -> list[float | None]:
    """Divide values into at most `columns` columns. Return the mean of each; None without a value.

    All columns have the same number of values, but the oldest may have fewer.
    """
    if len(values) <= columns:
        return list(values)
    size = -(-len(values) // columns)
    start = len(values) % size  # the newest column is always a whole one
    parts = [values[:start]] if start else []
    parts += [values[at : at + size] for at in range(start, len(values), size)]
    return [_mean(part) for part in parts]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return fmean(known) if known else None


def draw_line(
    kind: str, values: Sequence[float | None], low: float, high: float, columns: int = 0
) -> Line:
    """Return a line that ends at the right edge. `columns` is the number of places of the chart."""
    columns = max(columns, len(values), 2)
    offset = columns - len(values)
    span = high - low or 1.0
    pieces: list[list[str]] = []
    last = -MAX_GAP - 2
    for place, value in enumerate(values):
        if value is None:
            continue
        if place - last > MAX_GAP + 1:
            pieces.append([])
        last = place
        x = (offset + place) / (columns - 1) * WIDTH
        y = HEIGHT - MARGIN - (value - low) / span * (HEIGHT - 2 * MARGIN)
        pieces[-1].append(f"{x:.1f},{y:.1f}")
    return Line(kind=kind, pieces=[" ".join(_widen(piece)) for piece in pieces])


def _widen(points: list[str]) -> list[str]:
    """Return the points of a piece, at least two: a single point would not be drawn."""
    return points if len(points) > 1 else points * 2


def find_bands(kind: str, names: Sequence[str], ignored: frozenset[str]) -> list[Band]:
    """Return a band for each run of equal names that are not `ignored`."""
    bands: list[Band] = []
    columns = max(len(names) - 1, 1)
    start = 0
    for place in range(1, len(names) + 1):
        if place < len(names) and names[place] == names[start]:
            continue
        if names[start] not in ignored:
            left = max(start - 0.5, 0) / columns * WIDTH
            right = min(place - 0.5, columns) / columns * WIDTH
            bands.append(
                Band(kind=kind, x=round(left, 1), width=round(right - left, 1), label=names[start])
            )
        start = place
    return bands
