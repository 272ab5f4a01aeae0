"""Whether a job makes its collectives in communication threads that its main threads wait for.

A program may hand its tensors to a thread that calls all_reduce, and wait for its event. All main
threads then sleep at one place, that of the culprit too. One rank alone cannot tell this from a
checkpoint's thread beside a main thread that hangs at a lock of its own; most ranks together can,
as long as no main thread waits for other ranks itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from watchtower.core.diagnosis.position import Place, Position
from watchtower.core.reading.frames import FrameClass
from watchtower.core.reading.threads import (
    CommThreads,
    Function,
    KnownStack,
    class_of,
    functions_of,
    root_of,
)


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
            return None  # beside what it does, others may hang in that, too
        roots |= own
        places.add(_place_of(item, stacks))
    crowd = [i for i in live if _may_wait_for_thread(i) and _place_of(i, stacks) in places]
    if 2 * len(crowd) <= len(live):
        return None
    return CommThreads(places=frozenset(places), roots=frozenset(roots))


def _roots_in_collectives(
    position: Position, stacks: Mapping[str, KnownStack]
) -> frozenset[Function]:
    """Give the outermost functions of the user's threads that are in a collective."""
    dump = position.last_dump
    threads = dump.threads if dump else ()
    inside = (t for t in threads if not t.main and class_of(t, stacks) is FrameClass.COLLECTIVE)
    return frozenset(root for thread in inside if (root := root_of(stacks[thread.digest])))


def _may_wait_for_thread(position: Position) -> bool:
    is_handed = position.frame_class is FrameClass.LOCK and position.place is Place.ELSEWHERE
    return is_handed and position.asleep and position.unchanged


def _place_of(position: Position, stacks: Mapping[str, KnownStack]) -> tuple[Function, ...]:
    return functions_of(stacks[position.stack.digest]) if position.stack else ()
