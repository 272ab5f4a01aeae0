"""The sinks: ranks outside of all calls, at which the waiting of the others may end.

Some of them may not be at fault although others wait for them. A wait in C shows only the line that
makes it (a rank in `irecv(...).wait()` sleeps in a futex under the user's own line, as at a lock),
so such a rank may itself wait for another one: not for a member of the group that waits for it, but
for a stage before it, with which it shares none of these groups.

Others hold up no call although the graph shows it: they called it, or have gone on. On NCCL a
thread runs ahead of its GPU: where the thread is shows nothing of a call queued before. And dumps
of ranks are not taken at one moment. In a job that is slow and not hung, the rank that was dumped
first is in no collective that the others are in, and all ranks have gone on since.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from watchtower.diagnosis.position import Place, Position
from watchtower.diagnosis.waits.collective_logs import CollectiveLogs
from watchtower.diagnosis.waits.graph import EndKind, WaitGraph, WaitPoint
from watchtower.diagnosis.waits.positions import Positions
from watchtower.evidence.frames import FrameClass
from watchtower.evidence.kernel import WAITS_IN_C

MAX_COMPARED = 64
"""Waiting ranks of one call with which a suspected rank is compared: each costs as much."""


@dataclass(frozen=True, slots=True)
class Sinks:
    """Ranks elsewhere that the others may wait for, by how sure that is."""

    chosen: tuple[Position, ...]
    """Those to accuse."""
    secondary: tuple[Position, ...] = ()
    """Those that may wait for one of the chosen, in a call that nothing shows."""
    uncertain: frozenset[int] = frozenset()
    """Ranks of both that must not be accused with confidence: they may not hold up the others."""


def find_sinks(positions: Positions) -> Sinks:
    """Find the ranks elsewhere that the others may wait for.

    Of ranks with collective logs only those that the graph shows: a rank that is elsewhere and
    holds up no other is not suspected.
    """
    elsewhere = positions.at(Place.ELSEWHERE)
    graph, logs = positions.graph, positions.collective_logs
    if graph is None or logs is None:
        return Sinks(elsewhere)
    if graph.ends:
        known, sinks = logs.of_rank, graph.sinks
        elsewhere = tuple(i for i in elsewhere if i.rank in sinks or i.rank not in known)
    return _sort_by_certainty(elsewhere, positions.by_rank, logs, graph)


@dataclass(frozen=True, slots=True)
class _Evidence:
    """The suspected ranks, by what shows that they do not wait for another rank themselves."""

    unseen: frozenset[int]
    """They may wait for another rank, in a call that nothing shows."""
    evident: frozenset[int]
    """Their stack shows that they do not wait."""
    proven: frozenset[int]
    """The evident ones of which the logs show that they hold up others."""
    by_partners: Mapping[frozenset[int], Sequence[int]]
    """The unseen ones, by the ranks with which they share all their groups. They wait for none of
    these."""


def _sort_by_certainty(
    suspected: Sequence[Position],
    by_rank: Mapping[int, Position],
    logs: CollectiveLogs,
    graph: WaitGraph,
) -> Sinks:
    """Return the suspected ranks by how sure it is that the others wait for them."""
    points_of = _points_held_up(graph, {item.rank for item in suspected})
    without_fault = _find_without_fault(points_of, by_rank, logs)
    beside = _find_beside_callers(suspected, points_of, by_rank)
    without_fault |= {rank for rank in beside if by_rank[rank].frame_class.traits.waits_for_ranks}
    suspected = _leave_out(without_fault | beside, suspected, graph.certain_sinks)
    evidence = _read_evidence(suspected, points_of, logs, graph)
    secondary = _find_secondary(evidence, graph.certain_sinks)
    return Sinks(
        chosen=tuple(item for item in suspected if item.rank not in secondary),
        secondary=tuple(item for item in suspected if item.rank in secondary),
        uncertain=without_fault | secondary | _find_uncertain(evidence, by_rank, logs, graph),
    )


def _find_beside_callers(
    suspected: Sequence[Position],
    points_of: Mapping[int, Sequence[WaitPoint]],
    by_rank: Mapping[int, Position],
) -> frozenset[int]:
    """Find ranks that stay at the very place of a rank which waits for them.

    A log may lack their last call. Where a stack shows the collective itself, it does.
    """
    return frozenset(
        item.rank
        for item in suspected
        if item.asleep
        and item.unchanged
        and any(
            _is_at_place_of(item, by_rank[rank])
            for point in points_of.get(item.rank, ())
            for rank in point.waiting[:MAX_COMPARED]
            if rank in by_rank
        )
    )


def _is_at_place_of(position: Position, other: Position) -> bool:
    if position.stack is None or other.stack is None:
        return False
    return position.stack.digest == other.stack.digest and other.asleep


def _leave_out(
    without_fault: Collection[int], suspected: Sequence[Position], certain: Collection[int]
) -> Sequence[Position]:
    """Return the ranks with a fault, if one of them certainly holds up others; else all."""
    at_fault = [item for item in suspected if item.rank not in without_fault]
    return at_fault if any(item.rank in certain for item in at_fault) else suspected


def _read_evidence(
    suspected: Sequence[Position],
    points_of: Mapping[int, Sequence[WaitPoint]],
    logs: CollectiveLogs,
    graph: WaitGraph,
) -> _Evidence:
    unseen = frozenset(item.rank for item in suspected if _may_wait_unseen(item, logs))
    evident = frozenset(item.rank for item in suspected if item.reading is not None) - unseen
    return _Evidence(
        unseen=unseen,
        evident=evident,
        proven=evident & graph.certain_sinks,
        by_partners=_by_partners(unseen, points_of, logs),
    )


def _find_secondary(evidence: _Evidence, certain: Collection[int]) -> frozenset[int]:
    """Return the unseen ranks that may wait for a rank which is visibly elsewhere."""
    secondary: set[int] = set()
    for partners, ranks in evidence.by_partners.items():
        if not evidence.proven <= partners:
            secondary.update(ranks)
        elif not evidence.evident <= partners:
            secondary.update(rank for rank in ranks if rank not in certain)
    return frozenset(secondary)


def _find_uncertain(
    evidence: _Evidence, by_rank: Mapping[int, Position], logs: CollectiveLogs, graph: WaitGraph
) -> frozenset[int]:
    """Return the unseen ranks that may not hold up the others, whether secondary or not."""
    if not (evidence.evident or _may_share_a_fault(evidence.unseen, by_rank)):
        return evidence.unseen
    elsewhere = {rank for rank, item in by_rank.items() if item.place is Place.ELSEWHERE}
    may_be_network = any(end.kind is EndKind.POINT for end in graph.ends)
    uncertain = _find_beside_waiting(evidence.unseen, by_rank, logs)
    for partners, ranks in evidence.by_partners.items():
        # Ranks of several stages of one pipeline may wait for each other.
        has_stages = not (evidence.evident or evidence.unseen <= partners)
        if may_be_network or has_stages or not elsewhere <= partners:
            uncertain.update(ranks)
    return frozenset(uncertain)


def _may_wait_unseen(position: Position, logs: CollectiveLogs) -> bool:
    """Return whether a rank outside of all recorded calls may wait for another rank all the same.

    A rank that uses blocking receives, which are counted, does not use other ones as well.
    """
    if position.frame_class.traits.may_spin_in_wait:
        return position.unchanged
    if not position.asleep or position.moving or not position.unchanged:
        return False
    if position.frame_class is FrameClass.BACKWARD:
        return True
    if any(row.receives_begun for row in logs.transfers.get(position.rank, ())):
        return False
    in_c = position.wait.wait_class in WAITS_IN_C
    return position.reading is not None and position.frame_class.traits.hides_any_call and in_c


def _points_held_up(graph: WaitGraph, ranks: Collection[int]) -> Mapping[int, list[WaitPoint]]:
    """Return the wait points that each of these ranks holds up."""
    found: dict[int, list[WaitPoint]] = {}
    for point in graph.points:
        for rank in point.held_up_by:
            if rank in ranks:
                found.setdefault(rank, []).append(point)
    return found


def _find_beside_waiting(
    unseen: Collection[int], by_rank: Mapping[int, Position], logs: CollectiveLogs
) -> set[int]:
    """Find ranks without collective logs that are at the very place of a rank that waits."""
    places = {item.stack.digest for item in by_rank.values() if item.waits and item.stack}
    silent = (rank for rank in unseen if rank not in logs.of_rank)
    return {rank for rank in silent if (own := by_rank[rank].stack) and own.digest in places}


def _may_share_a_fault(unseen: Collection[int], by_rank: Mapping[int, Position]) -> bool:
    """Return whether these are at one place, and fewer than the ranks that wait.

    Others are more likely at different places of a pipeline.
    """
    stacks = {stack.digest for rank in unseen if (stack := by_rank[rank].stack)}
    waiting = sum(item.waits for item in by_rank.values())
    return len(unseen) < 2 or (len(stacks) == 1 and len(unseen) < waiting)


def _by_partners(
    ranks: Collection[int], points_of: Mapping[int, Sequence[WaitPoint]], logs: CollectiveLogs
) -> Mapping[frozenset[int], list[int]]:
    """Sort ranks by those with which they share all groups they use, and messages waited for.

    A rank that shares only some groups may be of another stage: every rank is in the world's group.
    """
    found: dict[frozenset[int], list[int]] = {}
    shared_by: dict[tuple[str, ...], frozenset[int]] = {}
    for rank in ranks:
        groups = tuple(sorted({log.group for log in logs.logs_of(rank)}))
        if groups not in shared_by:
            shared_by[groups] = _find_shared(groups, logs)
        ends = {r for p in points_of.get(rank, ()) if p.group is None for r in (rank, *p.waiting)}
        found.setdefault(shared_by[groups] | ends, []).append(rank)
    return found


def _find_shared(groups: Sequence[str], logs: CollectiveLogs) -> frozenset[int]:
    members = sorted((logs.groups[name].members for name in groups), key=len)
    members = [each for each in members if len(each) > 1]
    shared = frozenset(members[0]) if members else frozenset[int]()
    for each in members[1:]:
        shared = shared.intersection(each)
    return shared


def _find_without_fault(
    points_of: Mapping[int, Sequence[WaitPoint]],
    by_rank: Mapping[int, Position],
    logs: CollectiveLogs,
) -> frozenset[int]:
    """Find ranks that hold up none of the points which they seem to hold up.

    `points_of`: by rank, the points that it seems to hold up.
    """
    points = {id(point): point for each in points_of.values() for point in each}
    real = {key for key, point in points.items() if _is_waited_in(point, by_rank, logs)}
    return frozenset(
        rank
        for rank, each in points_of.items()
        if not any(id(p) in real and _may_hold_up(rank, p, logs) for p in each)
        or _goes_on(rank, each, by_rank, logs)
    )


def _is_waited_in(point: WaitPoint, by_rank: Mapping[int, Position], logs: CollectiveLogs) -> bool:
    waiting = (by_rank[rank] for rank in point.waiting if rank in by_rank)
    return any(_stayed(item, point, logs) for item in waiting)


def _may_hold_up(rank: int, point: WaitPoint, logs: CollectiveLogs) -> bool:
    """Return whether a rank has not called yet. After its call its thread holds up no rank."""
    log = logs.log_of(rank, point.group.id) if point.group else None
    return log is None or log.called < point.number


def _goes_on(
    rank: int, points: Sequence[WaitPoint], by_rank: Mapping[int, Position], logs: CollectiveLogs
) -> bool:
    """Return whether a rank gets on in any point that others wait for it in.

    It is then on its way to the other points too. Progress in a group where no rank waits for it,
    of another thread or of its own, shows nothing.
    """
    own = by_rank.get(rank)
    return own is not None and not all(_stayed(own, point, logs) for point in points)


def _stayed(position: Position, point: WaitPoint, logs: CollectiveLogs) -> bool:
    """Return whether two dumps show a rank at one place in what this point is about.

    True with fewer than two dumps: nothing shows that it has gone on.
    """
    taken = [dump.collectives for dump in position.evidence.dumps if dump.collectives]
    known = [each for each in taken if each.logs or each.peers][-2:]
    if len(known) < 2:
        return True
    before, after = known
    if point.group is not None:
        own = (logs.by_digest[digest] for digest in after.logs if digest in logs.by_digest)
        return all(log.digest in before.logs for log in own if log.group == point.group.id)
    ends = {*point.waiting, *point.held_up_by}
    was, now = ([row for row in each.peers if row.peer in ends] for each in known)
    return was == now
