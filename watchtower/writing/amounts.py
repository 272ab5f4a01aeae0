"""Counts, steps and seconds that a sentence may show. Values that cannot be true become None: they
come from processes and nodes."""

from __future__ import annotations

import math

from watchtower.writing.text import format_duration

MAX_COUNT = 10**8
"""Ranks, dumps and suspects above this are not counts, but errors."""

MAX_STEP = 10**15
MAX_SECONDS = 10 * 366 * 86400.0
"""Larger values cannot be true: a rank writes its step itself. They are not shown."""

MAX_MOMENT = 2.0**33
"""UNIX seconds of the year 2242."""


def find_count(value: int | None) -> int | None:
    """Return a number of things that can be true, else None."""
    return value if value is not None and 0 <= value <= MAX_COUNT else None


def find_step(value: int | None) -> int | None:
    """Return a step that can be true, else None."""
    return value if value is not None and 0 <= value <= MAX_STEP else None


def find_seconds(value: float | None) -> float | None:
    """Return a duration that can be true, else None."""
    is_known = value is not None and math.isfinite(value) and 0 <= value <= MAX_SECONDS
    return value if is_known else None


def find_moment(value: float | None) -> float | None:
    """Return UNIX seconds that can be true, else None."""
    is_known = value is not None and math.isfinite(value) and 0 < value <= MAX_MOMENT
    return value if is_known else None


def format_short(seconds: float) -> str:
    """Return a duration that may be shorter than a second: "0.4 s", "13 s", "4 min"."""
    return f"{max(seconds, 0.01):.2g} s" if seconds < 10 else format_duration(seconds)
