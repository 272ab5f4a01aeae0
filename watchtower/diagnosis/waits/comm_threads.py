"""Source of waits: communication threads, in which a job makes its collectives.

A program may hand its tensors to a thread that calls all_reduce, and wait for the event of that
thread. All main threads then sleep at one place, that of the odd rank too. If this is so on
one rank alone, the thread may also be a checkpoint thread, beside a main thread that hangs at a
lock of its own. If it is so on most ranks, it is not, as long as no main thread waits for other
ranks itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from watchtower.diagnosis.position import Place, Position, take_position
from watchtower.diagnosis.waits.positions import Known
from watchtower.evidence.frame_class import FrameClass
from watchtower.evidence.threads import (
    CommThreads,
    Function,
    KnownStack,
    class_of,
    functions_of,
    root_of,
)

COMM_THREAD = "communication thread"


def find_waits_in_comm_threads(positions: Known) -> Known:
    """Place every rank anew by the stack of its communication thread, where the job has these."""
    threads = find_comm_threads(positions.by_rank.values(), positions.stacks)
    if threads is None:
        return positions
    case, stacks = positions.case, positions.stacks
    by_rank = {item.rank: take_position(case, item, stacks, threads) for item in case.ranks}
    inside = (rank for rank, item in by_rank.items() if item.place is Place.INSIDE)
    found = replace(positions, by_rank=by_rank, comm_threads=threads)
    return found.with_edge(COMM_THREAD, inside)


def find_comm_threads(
    positions: Collection[Position], stacks: Mapping[str, KnownStack]
) -> CommThreads | None:
    """Find the threads in which the job makes its collectives; null where main threads make them.

    More than half of the live ranks must wait for a thread at places where some of them have one
    that is in a collective.
    """
    if not any(item.is_waited_beside for item in positions):
        return None
    live = [item for item in positions if item.live]
    if any(item.place is Place.INSIDE for item in live):
        return None
    roots: set[Function] = set()
    places: set[tuple[Function, ...]] = set()
    for item in live:
        own = _roots_in_collectives(item, stacks) if item.is_waited_beside else frozenset()
        if not own or item.place is not Place.ELSEWHERE:
            continue
        if not _may_wait_for_thread(item):
            return None  # the thread runs beside other work, in which other ranks may hang as well
        roots |= own
        places.add(_place_of(item, stacks))
    there = [i for i in live if _may_wait_for_thread(i) and _place_of(i, stacks) in places]
    if 2 * len(there) <= len(live):
        return None
    return CommThreads(places=frozenset(places), roots=frozenset(roots))


def _roots_in_collectives(
    position: Position, stacks: Mapping[str, KnownStack]
) -> frozenset[Function]:
    """Return the outermost functions of the user's threads that are in a collective."""
    dump = position.last_dump
    threads = dump.threads if dump else ()
    inside = (t for t in threads if not t.main and class_of(t, stacks) is FrameClass.COLLECTIVE)
    return frozenset(root for thread in inside if (root := root_of(stacks[thread.digest])))


def _may_wait_for_thread(position: Position) -> bool:
    is_at_lock = position.frame_class is FrameClass.LOCK and position.place is Place.ELSEWHERE
    return is_at_lock and position.asleep and position.unchanged


def _place_of(position: Position, stacks: Mapping[str, KnownStack]) -> tuple[Function, ...]:
    return functions_of(stacks[position.stack.digest]) if position.stack else ()
