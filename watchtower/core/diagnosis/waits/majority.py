"""The ranks that wait where neither frame nor record says so.

Calls into C are invisible: `work.wait()`, `comm.Allreduce()` or a read of the loss leave only the
line of the user's own loop. When most ranks sit still at one such place and a few are elsewhere,
the many are presumed to wait for the few. With two ranks there is no majority, and no presumption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from watchtower.core.diagnosis.position import Position
from watchtower.core.diagnosis.waits.scattered import find_scattered
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

MIN_CROWD_RANKS = 3
"""Fewer live ranks have no majority that means anything."""


def find_crowd(positions: Sequence[Position]) -> frozenset[int]:
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
    if live < MIN_CROWD_RANKS or 2 * len(still) <= live:
        return frozenset()
    if scattered := find_scattered(positions):
        return scattered
    crowd = _join_ending(_most_crowded(stacks, live), stacks, live) & still.keys()
    if 2 * len(crowd) <= live:
        crowd = _most_crowded(_without_lines(stacks), live) & _blocked_in_sockets(still)
    return crowd if 2 * len(crowd) > live else frozenset()


def _most_crowded(stacks: Mapping[int, Stack], live: int) -> frozenset[int]:
    node: StackNode | None = merge_stacks(stacks)
    while node is not None and len(node.ranks) == len(stacks):
        node = next((child for child in node.children if 2 * len(child.ranks) > live), None)
    return frozenset() if node is None else node.ranks


def _join_ending(crowd: frozenset[int], stacks: Mapping[int, Stack], live: int) -> frozenset[int]:
    """Let ranks that ended in one frame of the user's own count as one place, whoever called it.

    The stages of a pipeline send and receive from many lines by one function of their own. Where a
    branch of the stacks holds ranks in different frames, the one rank that is not in the frame of
    all the others is outside, though it may be in that branch; of more ranks nobody can tell.
    """
    if len({_ending_of(stacks[rank]) for rank in crowd}) < 2:
        return crowd
    endings: dict[object, set[int]] = {}
    for rank, stack in stacks.items():
        if stack.frames and not stack.frames[0].library:
            endings.setdefault(_ending_of(stack), set()).add(rank)
    most = frozenset(max(endings.values(), key=len, default=()))
    if 2 * len(most) <= live:
        return crowd
    return most if len(most) == live - 1 else crowd | most


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
