"""The ranks that are presumed to wait where neither frame nor log says so.

Calls into C are invisible: `work.wait()`, `comm.Allreduce()` or a read of the loss leave only the
line of the user's own loop. When most ranks sit still at one such place and a few are elsewhere,
the many are presumed to wait for the few. With two ranks there is no majority, and no presumption.

Most ranks may also be at several lines of one function: `isend(...).wait()` and `irecv(...).wait()`
sleep in a futex under the user's own line, as at a lock. When one rank leaves a pipeline, ranks are
at both lines of a function that has both. What else a function does is on its lines, too, a lock of
its own among it. So this counts only where the kernel shows of each other rank that it waits for
neither a futex nor a socket: then none of these is in such a call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from watchtower.core.diagnosis.position import Position
from watchtower.core.diagnosis.waiting.doubts import HIDES_ANY_CALL, MAY_BE_FOR_RANKS
from watchtower.core.reading.frames import FrameClass
from watchtower.core.reading.stacktree import StackNode, merge_stacks
from watchtower.wire.stacks import Stack, make_stack

HIDDEN_WAITS = frozenset(
    {
        FrameClass.USER,
        FrameClass.LOCK,
        FrameClass.THREAD,
        FrameClass.NETWORK,
        FrameClass.OPTIMIZER,
        FrameClass.BACKWARD,
        FrameClass.DEVICE,
        FrameClass.NONE,
    }
)
"""Classes whose frames may hide a collective; a data loader or a checkpoint does not."""

SOCKETS = frozenset({"network", "local"})
"""Kernel waits for the other end of a socket, on another node and on this one."""

MIN_RANKS = 3
"""Fewer live ranks have no majority that means anything."""


def find_majority(positions: Sequence[Position]) -> frozenset[int]:
    """Find the ranks, more than half of the live ones given, that sit still at one place.

    Descends the merged stacks as long as one branch holds a majority and everyone is in it.
    """
    still = {
        item.rank: item
        for item in positions
        if item.stack and item.frame_class in HIDDEN_WAITS and item.unchanged
    }
    stacks = {item.rank: item.stack for item in positions if item.stack}
    live = len(positions)
    if live < MIN_RANKS or 2 * len(still) <= live:
        return frozenset()
    if scattered := find_scattered(positions):
        return scattered
    most = _join_ending(_largest_branch(stacks, live), stacks, live) & still.keys()
    if 2 * len(most) <= live:
        most = _largest_branch(_without_lines(stacks), live) & _blocked_in_sockets(still)
    return most if 2 * len(most) > live else frozenset()


def _largest_branch(stacks: Mapping[int, Stack], live: int) -> frozenset[int]:
    node: StackNode | None = merge_stacks(stacks)
    while node is not None and len(node.ranks) == len(stacks):
        node = next((child for child in node.children if 2 * len(child.ranks) > live), None)
    return frozenset() if node is None else node.ranks


def _join_ending(most: frozenset[int], stacks: Mapping[int, Stack], live: int) -> frozenset[int]:
    """Let ranks that ended in one frame of the user's own count as one place, whoever called it.

    The stages of a pipeline send and receive from many lines by one function of their own. Where a
    branch of the stacks holds ranks in different frames, the one rank that is not in the frame of
    all the others is outside, though it may be in that branch; of more ranks it is not known.
    """
    if len({_ending_of(stacks[rank]) for rank in most}) < 2:
        return most
    endings: dict[object, set[int]] = {}
    for rank, stack in stacks.items():
        if stack.frames and not stack.frames[0].library:
            endings.setdefault(_ending_of(stack), set()).add(rank)
    largest = frozenset(max(endings.values(), key=len, default=()))
    if 2 * len(largest) <= live:
        return most
    return largest if len(largest) == live - 1 else most | largest


def _ending_of(stack: Stack) -> tuple[tuple[str, str, int], ...]:
    return tuple((frame.file, frame.function, frame.line) for frame in stack.frames[:1])


def _without_lines(stacks: Mapping[int, Stack]) -> dict[int, Stack]:
    """Let calls from different lines of one function be one place.

    The hub of a star and its leaves exchange at different lines. What else a function does lies
    there too, so that this only counts for ranks that the kernel shows in a socket call.
    """
    return {
        rank: make_stack(tuple(replace(frame, line=0, loops=()) for frame in stack.frames))
        for rank, stack in stacks.items()
    }


def _blocked_in_sockets(positions: Mapping[int, Position]) -> frozenset[int]:
    return frozenset(rank for rank, item in positions.items() if item.wait.wait_class in SOCKETS)


def find_scattered(live: Sequence[Position]) -> frozenset[int]:
    """Find the ranks, most but not all of the live ones, that sleep in a futex in one function."""
    at = {item.rank: _functions_of(item) for item in live if _may_wait_in_c(item)}
    functions, count = next(iter(Counter(at.values()).most_common(1)), ((), 0))
    if 2 * count <= len(live) or count == len(live):
        return frozenset()
    most = frozenset(rank for rank, own in at.items() if own == functions)
    clear = all(_is_elsewhere(item) for item in live if item.rank not in most)
    return most if clear else frozenset()


def are_scattered(waiting: Sequence[Position]) -> bool:
    """Return whether ranks sleep in a futex at several lines of one function."""
    read = [item.reading for item in waiting if item.reading and _may_wait_in_c(item)]
    return len({each.at for each in read}) > len({each.function for each in read})


def _may_wait_in_c(position: Position) -> bool:
    stays = position.asleep and position.unchanged and not position.moving
    return stays and position.frame_class in HIDES_ANY_CALL and position.wait.wait_class == "lock"


def _is_elsewhere(position: Position) -> bool:
    stays = position.asleep and position.unchanged
    return stays and position.wait.wait_class not in MAY_BE_FOR_RANKS


def _functions_of(position: Position) -> tuple[tuple[str, str], ...]:
    """Return the functions of a stack, whatever their lines."""
    frames = position.stack.frames if position.stack else ()
    return tuple((frame.function, frame.file) for frame in frames)
