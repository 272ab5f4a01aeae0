"""The sources of waits: what shows that a rank waits for other ranks, one function each.

A source takes the positions that the sources before it have made, and returns them with the ranks
that it shows to wait. So it may correct what an earlier source has shown, and a source that only
infers can add nothing where some rank is known to wait. Those that infer are in `majority.py`.
Another source is another function and another entry in `SOURCES`, which is the only list of them.

Communication threads: a program may hand its tensors to a thread that calls all_reduce, and wait
for the event of that thread. All main threads then sleep at one place, that of the odd rank too. If
this is so on one rank alone, the thread may also be a checkpoint thread, beside a main thread that
hangs at a lock of its own. If it is so on most ranks, it is not, as long as no main thread waits
for other ranks itself.

Collective logs correct what stacks show. A stack shows the name of a call, a log what was entered.
DDP's all_reduce has no Python frame, a hook may hang inside backward, and a wrapper may be called
barrier and do something else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

from watchtower.diagnosis.position import Place, Position, take_position
from watchtower.diagnosis.waits.collective_logs import (
    CollectiveLogs,
    limit_to_sent,
    read_collective_logs,
)
from watchtower.diagnosis.waits.graph import EndKind, WaitGraph, build_wait_graph
from watchtower.diagnosis.waits.majority import find_majority_waits, find_scattered_waits
from watchtower.diagnosis.waits.positions import Found, Known
from watchtower.evidence.exits import DeathKind, classify_ending, classify_exception
from watchtower.evidence.frames import FrameClass
from watchtower.evidence.kernel import FROM_OWN_NODE, MAY_BE_FOR_RANKS
from watchtower.evidence.threads import (
    CommThreads,
    Function,
    KnownStack,
    class_of,
    functions_of,
    task_of,
)


def find_waits_in_comm_threads(positions: Known) -> Found[Known]:
    """Place every rank anew by the stack of its communication thread, where the job has these."""
    threads = find_comm_threads(positions.by_rank.values(), positions.stacks)
    if threads is None:
        return positions, ()
    case, stacks = positions.case, positions.stacks
    by_rank = {item.rank: take_position(case, item, stacks, threads) for item in case.ranks}
    found = replace(positions, by_rank=by_rank, comm_threads=threads)
    return found, [item.rank for item in found.at(Place.INSIDE)]


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
    tasks: set[Function] = set()
    places: set[tuple[Function, ...]] = set()
    for item in live:
        own = _tasks_in_collectives(item, stacks) if item.is_waited_beside else frozenset()
        if not own or item.place is not Place.ELSEWHERE:
            continue
        if not _may_wait_for_thread(item):
            return None  # the thread runs beside other work, in which other ranks may hang as well
        tasks |= own
        places.add(_place_of(item, stacks))
    there = [i for i in live if _may_wait_for_thread(i) and _place_of(i, stacks) in places]
    if 2 * len(there) <= len(live):
        return None
    return CommThreads(places=frozenset(places), tasks=frozenset(tasks))


def _tasks_in_collectives(
    position: Position, stacks: Mapping[str, KnownStack]
) -> frozenset[Function]:
    """Return the tasks of the threads, beside main, that are in a collective."""
    dump = position.last_dump
    threads = dump.threads if dump else ()
    inside = (t for t in threads if not t.main and class_of(t, stacks) is FrameClass.COLLECTIVE)
    return frozenset(task for thread in inside if (task := task_of(stacks[thread.digest])))


def _may_wait_for_thread(position: Position) -> bool:
    is_at_lock = position.frame_class is FrameClass.LOCK and position.place is Place.ELSEWHERE
    return is_at_lock and position.asleep and position.unchanged


def _place_of(position: Position, stacks: Mapping[str, KnownStack]) -> tuple[Function, ...]:
    return functions_of(stacks[position.stack.digest]) if position.stack else ()


def find_waits_in_children(positions: Known) -> Found[Known]:
    """Find the ranks whose child process waits for other ranks, if no rank waits itself.

    A library may save checkpoints in a process that has process groups of its own. While one rank
    waits for itself, that child may run beside other work, in which another rank may hang.
    """
    if positions.waiting:
        return positions, ()
    found = {
        item.rank: waiting
        for item in positions.at(Place.ELSEWHERE)
        if _may_wait_for_child(item) and (waiting := _take_waiting(item, positions.stacks))
    }
    return replace(positions, by_rank={**positions.by_rank, **found}), sorted(found)


def _may_wait_for_child(position: Position) -> bool:
    """Return whether it stays in a call that gets something from another process of its node."""
    stays = position.asleep and position.unchanged and not position.moving
    is_saving = position.frame_class is FrameClass.CHECKPOINT
    is_open = is_saving or position.frame_class.traits.is_own_code
    return stays and is_open and position.wait.wait_class in FROM_OWN_NODE


def _take_waiting(position: Position, stacks: Mapping[str, KnownStack]) -> Position | None:
    """Return the position of a rank in the call of its child; None if no child waits for ranks."""
    dumps = position.evidence.dumps[-2:]
    found = [{c.pid: t.digest for c in d.children for t in c.threads if t.main} for d in dumps]
    for pid, digest in found[-1].items():
        known = stacks.get(digest)
        if known is None or not known.frame_class.traits.waits_for_ranks:
            continue
        if found[0].get(pid) == digest:
            placed = replace(position, stack=known.stack, reading=known.reading)
            return replace(placed, frame_class=known.frame_class, place=Place.INSIDE)
    return None


ABSENT = frozenset({Place.CANNOT_RUN, Place.ABSENT})


def find_waits_in_logs(positions: Known) -> Found[Known]:
    """Build the graph of collective logs, and place the ranks by what they have entered."""
    logs = read_collective_logs(positions.case)
    if logs is None:
        return positions, ()
    queued = frozenset(i.rank for i in positions.by_rank.values() if i.waits_for_device)
    logs = replace(logs, transfers=limit_to_sent(logs.transfers, queued), queued=queued)
    graph = _build_graph(positions.by_rank, logs)
    by_rank = {rank: _place(item, logs, graph) for rank, item in positions.by_rank.items()}
    found = replace(positions, by_rank=by_rank, collective_logs=logs, graph=graph)
    return found, graph.blocked_in


def _build_graph(by_rank: Mapping[int, Position], logs: CollectiveLogs) -> WaitGraph:
    """Build the graph.

    Where every member has made each call that is waited for, the calls may be queued on devices in
    orders that wait for each other. Only such a cycle shows that the order matters: calls of
    several groups may also be executed side by side.
    """
    elsewhere = [item.rank for item in by_rank.values() if _is_elsewhere(item)]
    absent = [item.rank for item in by_rank.values() if item.place in ABSENT]
    graph = build_wait_graph(logs, elsewhere, absent)
    if not logs.oldest_open or any(end.kind is not EndKind.POINT for end in graph.ends):
        return graph
    ordered = build_wait_graph(logs, elsewhere, absent, in_order=True)
    is_cycle = any(end.kind is EndKind.CYCLE for end in ordered.ends)
    return ordered if is_cycle else graph


def _place(position: Position, logs: CollectiveLogs, graph: WaitGraph) -> Position:
    place = _find_place(position, logs, graph)
    if position.rank in graph.certain_sinks and _is_in_unknown_call(position, logs):
        place = Place.ELSEWHERE
    return position.moved_to(place)


def _find_place(position: Position, logs: CollectiveLogs, graph: WaitGraph) -> Place:
    place = position.place
    if place in ABSENT or position.rank not in logs.of_rank:
        return place
    if position.rank in graph.blocked_in:
        return Place.INSIDE
    if position.waits_for_device:
        return place  # its device may be behind; its program is not
    if position.rank in graph.sinks and not position.frame_class.traits.waits_for_ranks:
        return Place.ELSEWHERE
    return place


def _is_elsewhere(position: Position) -> bool:
    if position.place in ABSENT:
        return True
    if position.waits_for_device:
        return False
    if position.frame_class.traits.is_busy_elsewhere and not _rests_on_names_alone(position):
        return True
    if position.is_waited_beside and not position.frame_class.traits.may_be_collective:
        return True  # the open call is that of the other thread
    computes = position.active or position.spins
    return position.place is Place.ELSEWHERE and (computes or not position.asleep)


def _rests_on_names_alone(position: Position) -> bool:
    """Return whether only names of functions show its work: they may belong to a wrapper.

    A name counts in the file of a known library. It also counts if the kernel shows a wait that is
    not for other ranks.
    """
    if position.reading is not None and position.reading.by_library:
        return False
    return not position.asleep or position.wait.wait_class in MAY_BE_FOR_RANKS


def _is_in_unknown_call(position: Position, logs: CollectiveLogs) -> bool:
    """Return whether it stays in a call that waits and that no log knows: a monitored barrier, a
    receive that was begun before, a call of another library. The other ranks do wait for it.
    """
    if position.frame_class is not FrameClass.COLLECTIVE or not position.unchanged:
        return False
    last = position.last_dump
    is_recent = last is not None and last.collectives is not None and not last.collectives.failure
    return is_recent and position.place is Place.INSIDE and position.rank in logs.of_rank


GIVING_UP = frozenset(
    {
        DeathKind.OWN_EXCEPTION,
        DeathKind.CONSEQUENTIAL,
        DeathKind.EXIT_ONE,
        DeathKind.ABORTED,
        DeathKind.TERMINATED,
    }
)
"""How a rank ends after its own timeout or its launcher's, whatever its last words are."""


def find_waits_given_up(positions: Known) -> Found[Known]:
    """Add the ranks that waited in this stall and have ended, while a live rank was elsewhere.

    A timeout ends the ranks that wait, long before the one they wait for. Some of them stay for a
    while without a stack, in the destructors of native code: then only the exception in their
    heartbeat shows that they waited.
    """
    if not positions.at(Place.ELSEWHERE, Place.CANNOT_RUN):
        return positions, ()
    ended = [
        item
        for item in positions.ended
        if item.frame_class.traits.waits_for_ranks
        and classify_ending(item.evidence.ended) in GIVING_UP
    ]
    raised = filter(_raised_of_waiting, positions.at(Place.UNSEEN))
    return positions, [item.rank for item in (*ended, *raised)]


def _raised_of_waiting(position: Position) -> bool:
    """Return whether a rank without a stack has reported a broken or timed out wait."""
    beat = position.evidence.beat
    if position.reading is not None or beat is None or not beat.exception_type:
        return False
    kind = classify_exception(beat.exception_type, beat.exception_text)
    return kind is DeathKind.CONSEQUENTIAL


def find_waits_in_stacks(positions: Known) -> Found[Known]:
    """Find the ranks whose stack ends in a call that waits for other ranks."""
    return positions, [item.rank for item in positions.at(Place.INSIDE)]


def find_waits_for_devices(positions: Known) -> Found[Known]:
    """Find the ranks whose training thread waits for its device."""
    waiting = (item for item in positions.by_rank.values() if item.waits and item.waits_for_device)
    return positions, [item.rank for item in waiting]


class Find(Protocol):
    """Finds the ranks that wait by one source; returns the same positions where it shows none."""

    def __call__(self, positions: Known, /) -> Found[Known]:
        """Return the positions with what this source shows, and the ranks that wait by it."""
        ...


class Source(NamedTuple):
    """A source of waits, and its words."""

    name: str
    """What shows the wait, in summaries. Two sources with one name are one to people."""
    find: Find
    wait: str = "waits"
    """What a sentence says of one rank, before "for rank 5"."""
    wait_all: str = "wait"
    """What it says of several ranks."""


STACK, COLLECTIVE_LOG, GAVE_UP = "stack", "collective log", "gave up"
PRESUMED = "presumed"

SOURCES: tuple[Source, ...] = (
    Source(STACK, find_waits_in_stacks),
    Source("communication thread", find_waits_in_comm_threads),
    Source("child process", find_waits_in_children),
    Source(COLLECTIVE_LOG, find_waits_in_logs),
    Source("device", find_waits_for_devices),
    Source(PRESUMED, find_scattered_waits, "seems to wait", "seem to wait"),
    Source(PRESUMED, find_majority_waits, "seems to wait", "seem to wait"),
    Source(GAVE_UP, find_waits_given_up, "waited until it gave up", "waited until they gave up"),
)
"""In the order in which they are asked: what is seen, what is inferred, and what is over."""


def find_waits(positions: Known) -> Known:
    """Ask every source which ranks wait."""
    for source in SOURCES:
        positions, ranks = source.find(positions)
        positions = positions.with_edge(source.name, ranks)
    return positions
