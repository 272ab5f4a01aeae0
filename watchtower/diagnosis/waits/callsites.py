"""Compares where two ranks wait in the same program: before, after, in the same loop or past it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from watchtower.diagnosis.position import Position
from watchtower.evidence.frames import last_component, name_line
from watchtower.wire.stacks import Frame

Site = tuple[Frame, ...]
"""Frames that lead to a call, outermost first, without the call itself."""


class ProgramOrder(Enum):
    """Where one call site lies, seen from another."""

    LEFT_LOOP = "left the loop"
    """Behind a loop that the other is still in."""
    IN_LOOP = "in the loop"
    """In a loop that the other has left."""
    SAME_LOOP = "same loop"
    STRAIGHT = "straight"
    """No loop lies around or between them."""
    SAME_LINE = "same line"
    FEWER_STEPS = "fewer steps"
    """The same line, outside of every loop, with fewer steps. Hosts that run ahead of their devices
    come there although the devices are in different calls."""
    LATER = "later"
    """Further down. Whether a loop lies between is unknown, because the source could not be
    read."""
    EARLIER = "earlier"
    UNKNOWN = "unknown"
    """No function that both are in."""


def compare_positions(one: Position, others: Sequence[Position]) -> ProgramOrder:
    """Return where a rank is, seen from ranks that wait together; by their steps where lines show
    nothing.

    A loop inside of a step, such as one over micro-batches, is entered again with each step. So it
    shows nothing if the rank inside of it is in a later step than the others.
    """
    site = site_of(one)
    order = compare_sites(site, next((found for item in others if (found := site_of(item))), ()))
    is_outside = all(frame.has_source or frame.library for frame in site) and not _loops_in(site)
    if order is ProgramOrder.SAME_LINE and is_outside and _has_fewer_steps(one, others):
        return ProgramOrder.FEWER_STEPS
    if order is ProgramOrder.IN_LOOP and _is_behind(others, [one]):
        return ProgramOrder.SAME_LOOP
    if order is ProgramOrder.LEFT_LOOP and _is_behind([one], others):
        return ProgramOrder.SAME_LOOP
    return order


def _is_behind(ranks: Sequence[Position], others: Sequence[Position]) -> bool:
    """Return whether all of these ranks are in earlier steps than the others. Hosts that run ahead
    of their devices may be in any step."""
    if any(item.waits_for_device for item in (*ranks, *others)):
        return False
    steps = [item.step for item in ranks if item.step is not None]
    later = [item.step for item in others if item.step is not None]
    return bool(steps and later) and max(steps) < min(later)


def is_further_down(one: Position, other: Position) -> bool:
    """Return whether a rank is at a later line than another, in the innermost function that both
    are in."""
    site, behind = site_of(one), site_of(other)
    fork = _find_fork(site, behind)
    return fork is not None and site[fork].line > behind[fork].line


def _has_fewer_steps(one: Position, others: Iterable[Position]) -> bool:
    return one.step is not None and all(
        item.step is not None and one.step < item.step for item in others
    )


def site_of(position: Position) -> Site:
    """Return the frames that lead to the call a rank waits in."""
    if position.stack is None or position.reading is None:
        return ()
    frames = position.stack.frames
    what, at = position.reading.what, position.reading.what_at
    for index in range(len(frames) - 1, -1, -1):
        if last_component(frames[index].function) == what and name_line(frames[index]) == at:
            return frames[:index:-1]
    return frames[::-1]


def compare_sites(one: Site, other: Site) -> ProgramOrder:
    """Return where `one` lies, seen from `other`."""
    fork = _find_fork(one, other)
    if fork is None:
        return (
            ProgramOrder.SAME_LINE
            if one and other and _is_same(one[0], other[0])
            else ProgramOrder.UNKNOWN
        )
    mine, theirs = one[fork], other[fork]
    if not (mine.has_source and theirs.has_source):
        return ProgramOrder.LATER if mine.line > theirs.line else ProgramOrder.EARLIER
    around = _loops_in(one[:fork]) + len(set(mine.loops) & set(theirs.loops))
    if _has_left(mine, theirs, other[fork + 1 :], around):
        return ProgramOrder.LEFT_LOOP
    if _has_left(theirs, mine, one[fork + 1 :], around):
        return ProgramOrder.IN_LOOP
    return ProgramOrder.SAME_LOOP if around else ProgramOrder.STRAIGHT


def _find_fork(one: Site, other: Site) -> int | None:
    """Find the innermost function that both are in, at different lines."""
    for index, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if not _is_same(mine, theirs):
            return None
        if mine.line != theirs.line:
            return index
    return None


def _is_same(mine: Frame, theirs: Frame) -> bool:
    return (mine.function, mine.file) == (theirs.function, theirs.file)


def _has_left(mine: Frame, theirs: Frame, below: Site, around: int) -> bool:
    """Return whether `mine` lies behind a loop that the other is in, or that is in its callees.

    In a callee, a loop whose own lines make the collective call (over parameters or buckets)
    is part of one step where a loop lies around both; the loop over steps calls functions.
    """
    if any(mine.line > line for line in set(theirs.loops) - set(mine.loops)):
        return True
    own = [frame for frame in below if not frame.library]
    return mine.line > theirs.line and _loops_in(own[:-1] if around else own) > 0


def _loops_in(frames: Iterable[Frame]) -> int:
    return sum(len(frame.loops) for frame in frames)
