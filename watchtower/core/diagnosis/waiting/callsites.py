"""Compares where two ranks wait in the same program: before, after, in the same loop or past it."""

from __future__ import annotations

from enum import Enum

from watchtower.core.diagnosis.frames import last_component, position
from watchtower.core.diagnosis.standing import Standing
from watchtower.wire.stacks import Frame


class Order(Enum):
    """Where one call site lies, seen from another in the same function."""

    LEFT_LOOP = "left the loop"
    """Behind a loop that the other is still in."""
    IN_LOOP = "in the loop"
    """In a loop that the other has left."""
    SAME_LOOP = "same loop"
    SAME_LINE = "same line"
    LATER = "later"
    """Further down; whether a loop lies between is not known, for want of the source."""
    EARLIER = "earlier"
    UNKNOWN = "unknown"
    """No function that both are in."""


def site_of(standing: Standing) -> tuple[Frame, ...]:
    """Give the frames that lead to the call a rank waits in, outermost first, without the call."""
    if standing.stack is None or standing.reading is None:
        return ()
    frames = standing.stack.frames
    what, at = standing.reading.what, standing.reading.what_at
    for index in range(len(frames) - 1, -1, -1):
        if last_component(frames[index].function) == what and position(frames[index]) == at:
            return frames[:index:-1]
    return frames[::-1]


def compare_sites(one: tuple[Frame, ...], other: tuple[Frame, ...]) -> Order:
    """Say where `one` lies, seen from `other`; frames outermost first."""
    shared = False
    for mine, theirs in zip(one, other, strict=False):
        if (mine.function, mine.file) != (theirs.function, theirs.file):
            break
        shared = True
        if mine.line != theirs.line:
            return _compare_lines(mine, theirs)
    return Order.SAME_LINE if shared else Order.UNKNOWN


def _compare_lines(mine: Frame, theirs: Frame) -> Order:
    if not (mine.has_source and theirs.has_source):
        return Order.LATER if mine.line > theirs.line else Order.EARLIER
    left = set(theirs.loops) - set(mine.loops)
    if any(mine.line > line for line in left):
        return Order.LEFT_LOOP
    inside = set(mine.loops) - set(theirs.loops)
    if any(theirs.line > line for line in inside):
        return Order.IN_LOOP
    return Order.SAME_LOOP
