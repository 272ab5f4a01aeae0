"""Ranks that wait in C at several lines of one function, while the others are seen elsewhere.

`isend(...).wait()` and `irecv(...).wait()` sleep in a futex under the user's own line, as at a
lock. A function that has both of them has ranks at both lines when one rank leaves the pipeline.
What else a function does lies on its lines, too, a lock of its own among it. So this counts only
where most ranks are in that function and the kernel shows of each other one that it waits for
neither a futex nor a socket: then none of these is in such a call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from watchtower.core.diagnosis.position import Position
from watchtower.core.diagnosis.waits.sinks import HIDES_ANY_CALL, MAY_BE_FOR_RANKS

Functions = tuple[tuple[str, str], ...]


def find_scattered(live: Sequence[Position]) -> frozenset[int]:
    """Find the ranks, most but not all of the live ones, that sleep in a futex in one function."""
    at = {item.rank: _functions_of(item) for item in live if _may_wait_in_c(item)}
    functions, count = next(iter(Counter(at.values()).most_common(1)), ((), 0))
    if 2 * count <= len(live) or count == len(live):
        return frozenset()
    crowd = frozenset(rank for rank, own in at.items() if own == functions)
    clear = all(_is_elsewhere(item) for item in live if item.rank not in crowd)
    return crowd if clear else frozenset()


def are_scattered(waiting: Sequence[Position]) -> bool:
    """Tell whether ranks sleep in a futex at several lines of one function."""
    read = [item.reading for item in waiting if item.reading and _may_wait_in_c(item)]
    return len({each.at for each in read}) > len({each.function for each in read})


def _may_wait_in_c(position: Position) -> bool:
    stays = position.asleep and position.unchanged and not position.moving
    return stays and position.frame_class in HIDES_ANY_CALL and position.wait.wait_class == "lock"


def _is_elsewhere(position: Position) -> bool:
    stays = position.asleep and position.unchanged
    return stays and position.wait.wait_class not in MAY_BE_FOR_RANKS


def _functions_of(position: Position) -> Functions:
    """Give the functions of a stack, whatever their lines."""
    frames = position.stack.frames if position.stack else ()
    return tuple((frame.function, frame.file) for frame in frames)
