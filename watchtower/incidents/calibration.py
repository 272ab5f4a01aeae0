"""How often verdicts were right, by their confidence: the answers of people, counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BANDS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Lowest confidence of each band. Below 0.5 a verdict names no cause, so that is one band."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A verdict about which a person has said whether it was right."""

    confidence: float
    is_right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Verdicts of similar confidence."""

    confidence_from: float
    """Lowest confidence of these verdicts."""
    confidence_to: float
    """Not included, except in the last band."""
    right_count: int
    """Number of right verdicts."""
    wrong_count: int
    """Number of wrong verdicts."""
    mean_confidence: float | None
    """Of these verdicts; null without one."""
    right_share: float | None
    """Share of these verdicts that were right, 0 to 1; null without one. If confidence means what
    it says, it is near `mean_confidence`."""


def calibrate(judged: Iterable[Judged]) -> list[Band]:
    """Return all bands, from the lowest confidence to the highest."""
    members: list[list[Judged]] = [[] for _ in BANDS]
    for each in judged:
        members[max(number for number, low in enumerate(BANDS) if each.confidence >= low)].append(
            each
        )
    ends = (*BANDS[1:], 1.0)
    return [_count(low, end, found) for low, end, found in zip(BANDS, ends, members, strict=True)]


def _count(low: float, end: float, judged: Sequence[Judged]) -> Band:
    right, number = sum(each.is_right for each in judged), len(judged)
    mean = sum(each.confidence for each in judged) / number if number else None
    return Band(
        confidence_from=low,
        confidence_to=end,
        right_count=right,
        wrong_count=number - right,
        mean_confidence=None if mean is None else round(mean, 3),
        right_share=round(right / number, 3) if number else None,
    )
