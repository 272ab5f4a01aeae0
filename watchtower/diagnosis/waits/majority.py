"""Sources of waits that infer: most ranks stay where neither a frame nor a log names the call.

Calls into C are invisible: `work.wait()`, `comm.Allreduce()` or a read of the loss leave only the
line of the user's own loop. If most ranks stay in one place or one function and a few are
elsewhere, the many are presumed to wait for the few. Two ranks have no majority, so no rank is
presumed to wait.

One function: `isend(...).wait()` and `irecv(...).wait()` sleep in a futex under the user's own
line, as a thread at a lock does. In a function with both calls the ranks are at both lines when one
of them leaves the pipeline. Other work of that function, such as a lock, has lines there too. So
this counts only if the kernel shows that each other rank waits for neither a futex nor a socket:
then none of those is in such a call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from watchtower.diagnosis.position import Place, Position
from watchtower.diagnosis.waits.positions import Found, Known
from watchtower.evidence.frames import StackNode, merge_stacks
from watchtower.evidence.kernel import MAY_BE_FOR_RANKS, SOCKETS
from watchtower.wire.stacks import Stack, make_stack

MIN_RANKS = 3
"""A majority of fewer live ranks means nothing."""

Functions = tuple[tuple[str, str], ...]
"""Function and file of each frame, whatever the lines are."""


def find_scattered_waits(positions: Known) -> Found[Known]:
    """Presume that the ranks wait which sleep in one function, if no rank is seen to wait."""
    if positions.waiting:
        return positions, ()
    return _presume(positions, find_scattered(positions.live))


def find_majority_waits(positions: Known) -> Found[Known]:
    """Presume that the ranks wait which stay at one place, if no rank is seen to wait."""
    if positions.waiting:
        return positions, ()
    return _presume(positions, find_majority(positions.live))


def _presume(positions: Known, ranks: frozenset[int]) -> Found[Known]:
    if not ranks:
        return positions, ()
    by_rank = {
        rank: item.moved_to(Place.CALL_UNKNOWN) if rank in ranks else item
        for rank, item in positions.by_rank.items()
    }
    return replace(positions, by_rank=by_rank), sorted(ranks)


def find_scattered(live: Sequence[Position]) -> frozenset[int]:
    """Find the ranks, most but not all of the live ones, that sleep in a futex in one function."""
    at = {item.rank: _functions_of(item) for item in live if _may_wait_in_c(item)}
    functions, count = next(iter(Counter(at.values()).most_common(1)), ((), 0))
    if 2 * count <= len(live) or count == len(live):
        return frozenset()
    there = frozenset(rank for rank, own in at.items() if own == functions)
    clear = all(_waits_for_no_rank(item) for item in live if item.rank not in there)
    return there if clear else frozenset()


def are_scattered(waiting: Sequence[Position]) -> bool:
    """Return whether ranks sleep in a futex at several lines of one function."""
    read = [item.reading for item in waiting if item.reading and _may_wait_in_c(item)]
    return len({each.at for each in read}) > len({each.function for each in read})


def _may_wait_in_c(position: Position) -> bool:
    stays = position.asleep and position.unchanged and not position.moving
    return (
        stays and position.frame_class.traits.hides_any_call and position.wait.wait_class == "lock"
    )


def _waits_for_no_rank(position: Position) -> bool:
    stays = position.asleep and position.unchanged
    return stays and position.wait.wait_class not in MAY_BE_FOR_RANKS


def _functions_of(position: Position) -> Functions:
    frames = position.stack.frames if position.stack else ()
    return tuple((frame.function, frame.file) for frame in frames)


def find_majority(positions: Sequence[Position]) -> frozenset[int]:
    """Find the ranks, more than half of the live ones given, that stay unchanged at one place.

    Descends the merged stacks as long as one branch holds a majority and all ranks are in it.
    """
    still = {
        item.rank: item
        for item in positions
        if item.stack and item.frame_class.traits.may_hide_collective and item.unchanged
    }
    stacks = {item.rank: item.stack for item in positions if item.stack}
    live = len(positions)
    if live < MIN_RANKS or 2 * len(still) <= live:
        return frozenset()
    most = _join_ending(_find_most(stacks, live), stacks, live)
    most = _leave_out_busy(_join_call(most, positions), positions) & still.keys()
    if 2 * len(most) <= live:
        most = _find_most(_without_lines(stacks), live) & _blocked_in_sockets(still)
    return most if 2 * len(most) > live else frozenset()


def _find_most(stacks: Mapping[int, Stack], live: int) -> frozenset[int]:
    node: StackNode | None = merge_stacks(stacks)
    while node is not None and len(node.ranks) == len(stacks):
        node = next((child for child in node.children if 2 * len(child.ranks) > live), None)
    return frozenset() if node is None else node.ranks


def _join_ending(most: frozenset[int], stacks: Mapping[int, Stack], live: int) -> frozenset[int]:
    """Take ranks that end in one frame of the user's own as one place, whatever calls it.

    The stages of a pipeline send and receive from many lines by one function of their own. Where a
    branch of the stacks holds ranks in different frames, the one rank that is not in the frame of
    all the others is outside, though it may be in that branch. If there are several such ranks,
    nothing shows which of them are outside.
    """
    if len({_ending_of(stacks[rank]) for rank in most}) < 2:
        return most
    endings: dict[object, set[int]] = {}
    for rank, stack in stacks.items():
        if stack.frames and not stack.frames[0].library:
            endings.setdefault(_ending_of(stack), set()).add(rank)
    alike = frozenset(max(endings.values(), key=len, default=()))
    if 2 * len(alike) <= live:
        return most
    return alike if len(alike) == live - 1 else most | alike


def _join_call(most: frozenset[int], positions: Sequence[Position]) -> frozenset[int]:
    """Add the ranks that are in the call of all these, whatever calls the function around it.

    One line of a helper is `work.wait()` for all stages of a pipeline. A helper may also call
    anything that it is given: of ranks at one line, native places show which are in Python itself.
    """
    found = [_call_of(item) for item in positions if item.rank in most]
    calls = {call for call in found if call is not None}
    if None in found or len({frame for frame, _ in calls}) != 1:
        return most
    return most | {item.rank for item in positions if _call_of(item) in calls}


def _leave_out_busy(most: frozenset[int], positions: Sequence[Position]) -> frozenset[int]:
    """Leave out the few ranks at this place that the kernel shows to do something else.

    They use a whole core, or wait for a file or a timer. If half of the ranks do, this is how they
    wait for each other. In a poll of unknown descriptors, one may be a connection to another rank.
    """
    may_wait = MAY_BE_FOR_RANKS | {"poll"}
    among = (item for item in positions if item.rank in most)
    busy = {item.rank for item in among if item.spins or item.wait.wait_class not in may_wait}
    return most - busy if 2 * len(busy) < len(most) else most


def _call_of(position: Position) -> tuple[object, object] | None:
    """Return the innermost frame and the kind of the native place; None in a library."""
    frames = position.stack.frames if position.stack else ()
    if not frames or frames[0].library or position.stack is None:
        return None
    kind = position.native.kind if position.native is not None else None
    return _ending_of(position.stack), kind


def _ending_of(stack: Stack) -> tuple[tuple[str, str, int], ...]:
    return tuple((frame.file, frame.function, frame.line) for frame in stack.frames[:1])


def _without_lines(stacks: Mapping[int, Stack]) -> dict[int, Stack]:
    """Take calls from different lines of one function as one place.

    The hub of a star and its leaves exchange at different lines. Other work of the function lies
    there too, so this only counts for ranks that the kernel shows in a socket call.
    """
    return {
        rank: make_stack(tuple(replace(frame, line=0, loops=()) for frame in stack.frames))
        for rank, stack in stacks.items()
    }


def _blocked_in_sockets(positions: Mapping[int, Position]) -> frozenset[int]:
    return frozenset(rank for rank, item in positions.items() if item.wait.wait_class in SOCKETS)
