"""Says which ranks outside of a collective may be no culprits although others wait for them.

A call into C shows only the line that makes it: a rank in `irecv(...).wait()` sleeps in a futex
under the user's own line, exactly as at a lock, and one whose stream waits for a peer's send sleeps
in `synchronize`. Such a rank may itself wait for one that is elsewhere: not for a member of the
group that waits for it, but for a stage before it, with which it shares none of these groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from watchtower.core.diagnosis.position import Place, Position
from watchtower.core.diagnosis.waits.collective_logs import Records
from watchtower.core.diagnosis.waits.graph import EndKind, WaitGraph
from watchtower.core.diagnosis.waits.points import WaitPoint
from watchtower.core.diagnosis.waits.progress import find_refuted
from watchtower.core.reading.frames import WAITING_CLASSES, FrameClass

HIDES_ANY_CALL = frozenset({FrameClass.USER, FrameClass.NONE, FrameClass.OPTIMIZER})
"""Classes in which the kernel's wait may be that of a call into C."""

WAITS_IN_C = frozenset({"lock", "network", "local"})
"""What the kernel shows of a library that waits for another rank: a futex, or a socket."""

MAY_BE_FOR_RANKS = WAITS_IN_C | {"gpu", ""}
"""What the kernel shows of a rank that may be in a call for other ranks as well."""

MAY_SPIN = WAITING_CLASSES | {FrameClass.DEVICE}
"""Classes in which a rank waits for others though no record says so, asleep or not."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Ranks behind, by how much speaks for each."""

    chosen: tuple[Position, ...]
    """Those to accuse."""
    overshadowed: tuple[Position, ...] = ()
    """Those that may as well wait for one of the chosen."""
    doubted: frozenset[int] = frozenset()
    """Ranks never to be accused with confidence."""


def weigh_suspicion(
    behind: Sequence[Position],
    by_rank: Mapping[int, Position],
    records: Records | None,
    graph: WaitGraph | None,
) -> Suspicion:
    """Prefer ranks that are visibly elsewhere to those that may wait for them.

    `behind`: those that may be accused, of all ranks.
    """
    if graph is None or records is None:
        return Suspicion(tuple(behind))
    points_of = _points_of(graph, {item.rank for item in behind})
    sure = find_awaited(graph)
    refuted = find_refuted(points_of, by_rank, records)
    if sure.intersection(item.rank for item in behind) - refuted:
        behind = [item for item in behind if item.rank not in refuted]
    unseen = frozenset(item.rank for item in behind if _may_wait_unseen(item, records))
    evident = {item.rank for item in behind if item.reading is not None} - unseen
    proven = evident & sure
    others = {rank for rank, item in by_rank.items() if item.place is Place.ELSEWHERE}
    nobodys = any(end.kind is EndKind.POINT for end in graph.ends)  # a link that fails, likely
    hidden, doubted = set(), set(refuted)
    for members, ranks in _by_partners(unseen, points_of, records).items():
        # Those of several stages of one pipeline may wait for each other.
        if nobodys or not others <= members or not (evident or unseen <= members):
            doubted.update(ranks)
        if not proven <= members:
            hidden.update(ranks)
        elif not evident <= members:
            hidden.update(rank for rank in ranks if rank not in sure)
    doubted |= hidden | _find_joined(unseen, by_rank, records)
    if not (evident or _have_one_cause(unseen, by_rank)):
        doubted.update(unseen)
    return Suspicion(
        chosen=tuple(item for item in behind if item.rank not in hidden),
        overshadowed=tuple(item for item in behind if item.rank in hidden),
        doubted=frozenset(doubted),
    )


def find_awaited(graph: WaitGraph | None) -> frozenset[int]:
    """Give the ranks of which records show that others wait for them, and they for nobody."""
    if graph is None:
        return frozenset()
    return frozenset(
        rank for end in graph.ends if end.kind is EndKind.RANK and end.certain for rank in end.ranks
    )


def _may_wait_unseen(position: Position, records: Records) -> bool:
    """Tell whether a rank outside of all recorded calls may wait for another rank all the same.

    Who takes messages by blocking calls, which are counted, takes none by others.
    """
    if position.frame_class in MAY_SPIN:
        return position.unchanged
    if not position.asleep or position.moving or not position.unchanged:
        return False
    if position.frame_class is FrameClass.BACKWARD:
        return True
    if any(row.receives_begun for row in records.transfers.get(position.rank, ())):
        return False
    in_c = position.wait.wait_class in WAITS_IN_C
    return position.reading is not None and position.frame_class in HIDES_ANY_CALL and in_c


def _points_of(graph: WaitGraph, ranks: Collection[int]) -> Mapping[int, list[WaitPoint]]:
    """Give the wait points that these ranks keep."""
    found: dict[int, list[WaitPoint]] = {}
    for point in graph.points:
        for rank in point.held_up_by:
            if rank in ranks:
                found.setdefault(rank, []).append(point)
    return found


def _find_joined(
    unseen: Collection[int], by_rank: Mapping[int, Position], records: Records
) -> set[int]:
    """Find ranks of which no records tell, and which are at the very place of some that wait."""
    places = {item.stack.digest for item in by_rank.values() if _waits(item) and item.stack}
    silent = (rank for rank in unseen if rank not in records.of_rank)
    return {rank for rank in silent if (own := by_rank[rank].stack) and own.digest in places}


def _have_one_cause(unseen: Collection[int], by_rank: Mapping[int, Position]) -> bool:
    """Tell whether these may share a fault: at one place, and fewer than those that wait.

    Others are more likely on their ways through a pipeline.
    """
    stacks = {stack.digest for rank in unseen if (stack := by_rank[rank].stack)}
    waiting = sum(_waits(item) for item in by_rank.values())
    return len(unseen) < 2 or (len(stacks) == 1 and len(unseen) < waiting)


def _waits(position: Position) -> bool:
    return position.waits


def _by_partners(
    ranks: Collection[int], points_of: Mapping[int, Sequence[WaitPoint]], records: Records
) -> Mapping[frozenset[int], list[int]]:
    """Sort ranks by those with which they share all groups they use, and messages waited for.

    Who shares only some of them may be of another stage: the group of everybody tells nothing.
    """
    found: dict[frozenset[int], list[int]] = {}
    shared_by: dict[tuple[str, ...], frozenset[int]] = {}
    for rank in ranks:
        groups = tuple(sorted({log.group for log in records.logs_of(rank)}))
        if groups not in shared_by:
            shared_by[groups] = _find_shared(groups, records)
        ends = {r for p in points_of.get(rank, ()) if p.group is None for r in (rank, *p.waiting)}
        found.setdefault(shared_by[groups] | ends, []).append(rank)
    return found


def _find_shared(groups: Sequence[str], records: Records) -> frozenset[int]:
    members = sorted((records.groups[name].members for name in groups), key=len)
    members = [each for each in members if len(each) > 1]
    shared = frozenset(members[0]) if members else frozenset[int]()
    for each in members[1:]:
        shared = shared.intersection(each)
    return shared
