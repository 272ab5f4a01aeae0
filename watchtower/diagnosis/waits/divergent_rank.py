"""Finds the rank of a cycle whose call counts break the law that the counts of all ranks obey.

Ranks of one program make the same calls in the same order, so their counts form a chain: of two
ranks, the one that is further on has called at least as much of everything. A rank that leaves a
call out, makes it twice or makes it in a wrong group breaks the chain.

The candidates are compared with three sets of ranks, one after the other. The first comparison in
which some candidate breaks the chain decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from watchtower.diagnosis.waits.collective_logs import CollectiveLogs, Group, name_kind
from watchtower.diagnosis.waits.graph import End, PointKind, WaitGraph, WaitPoint

ONE_CALL = 1
"""How much a count differs after a call is left out or made twice in this step. Groups that some
ranks use more often for good reason are further apart after a few steps."""

SEND, RECEIVE = "send", "recv"

Role = tuple[str, int, str]
"""Common to groups of one kind: the name without its numbers, the size, and the shape where a group
has one. "tp3" of four ranks has the role of "tp0". The role of messages is SEND or RECEIVE, and the
number of peers."""

CallCounts = Mapping[Role, int]
"""How many calls a rank has made in all of its groups of each role."""


class Relation(Enum):
    """The places of two ranks in their program, as far as they are known."""

    SAME = "at the same call"
    BEHIND = "has not come to the call that the other is in"
    UNKNOWN = "at different calls"


def find_break(own: CallCounts, other: CallCounts, relation: Relation) -> tuple[Role, int] | None:
    """Return the count by which `own` breaks the chain beside `other`, and by how much it differs.

    Null where the chain holds, and where no single count that differs by one call breaks it.
    """
    differing = list(differences(own, other))
    if relation is Relation.BEHIND:
        differing = [(role, by) for role, by in differing if by > 0]
    elif relation is Relation.UNKNOWN:
        differing = _find_minority(differing)
    return next(((role, by) for role, by in differing if abs(by) == ONE_CALL), None)


def _find_minority(differing: Sequence[tuple[Role, int]]) -> list[tuple[Role, int]]:
    """Return the counts that differ in another direction than all others which differ."""
    ahead = [(role, by) for role, by in differing if by > 0]
    behind = [(role, by) for role, by in differing if by < 0]
    if not ahead or not behind:
        return []
    return [side[0] for side in (behind, ahead) if len(side) == 1]


def are_comparable(own: CallCounts, other: CallCounts) -> bool:
    """Return whether two ranks fit into one chain: one of them is ahead in no count.

    Ranks with groups of different roles run different programs: nothing compares them.
    """
    if own.keys() != other.keys():
        return True
    signs = {by > 0 for _, by in differences(own, other)}
    return len(signs) < 2


def differences(own: CallCounts, other: CallCounts) -> Iterator[tuple[Role, int]]:
    """Yield the counts that both have and that differ, and by how much `own` is ahead."""
    for role, count in own.items():
        if role in other and count != other[role]:
            yield role, count - other[role]


def find_agreed(counts: Sequence[CallCounts]) -> CallCounts:
    """Return the counts that all of these share."""
    return {
        role: count
        for role, count in counts[0].items()
        if all(other.get(role) == count for other in counts)
    }


def count_calls(logs: CollectiveLogs, rank: int) -> dict[Role, int]:
    """Count the calls of a rank in its groups of each role."""
    counts: dict[Role, int] = defaultdict(int)
    for log in logs.logs_of(rank):
        counts[role_of(logs.groups[log.group])] += log.called
    return dict(counts)


def count_calls_and_messages(logs: CollectiveLogs, rank: int) -> dict[Role, int]:
    """Count messages as well. Only ranks of one pipeline stage have these in common."""
    counts = count_calls(logs, rank)
    rows = logs.transfers.get(rank, ())
    if rows:
        counts[SEND, len(rows), ""] = sum(row.sends_begun for row in rows)
        counts[RECEIVE, len(rows), ""] = sum(row.receives_begun for row in rows)
    return counts


def exchange_messages(logs: CollectiveLogs, members: Collection[int]) -> bool:
    """Return whether some of these ranks send each other messages, as pipeline stages do.

    Each stage of a pipeline runs a program of its own, so its counts belong to another chain.
    """
    return any(row.peer in members for rank in members for row in logs.transfers.get(rank, ()))


def role_of(group: Group) -> Role:
    """Return what a group has in common with others of its kind."""
    return name_kind(group), len(group.members), group.shape


MAX_CANDIDATES = 8
"""Candidates whose counts are compared, each with all ranks of the cycle. More of them are most
often a pipeline, in which counts differ anyway."""

LEAST_BREAKS = 2
"""If only two ranks break the chain beside each other, either may be the one."""

Pair = tuple[int, int]
"""A candidate, and a rank with which it does not fit into one chain."""


@dataclass(frozen=True, slots=True)
class CountAtPoint:
    """Ranks that came to a call have made `usual` calls in their groups of a role; it has not."""

    role: Role
    usual: int
    by: int
    """How many more it has made."""
    point: WaitPoint


@dataclass(frozen=True, slots=True)
class CountBeside:
    """One count differs by one call from that of another rank, against all other counts."""

    role: Role
    by: int
    other: int


@dataclass(frozen=True, slots=True)
class CountDifference:
    """By how many calls a count differs."""

    role: Role
    by: int
    group: Group | None
    """The one group in which these calls were made; null if the rank has several of this role."""


@dataclass(frozen=True, slots=True)
class CountsBesideAll:
    """Its counts fit together with those of no other rank."""

    nearest: int
    """The rank whose counts are nearest."""
    differing: tuple[CountDifference, ...]


Divergence = CountAtPoint | CountBeside | CountsBesideAll
"""How a rank breaks the chain."""


def find_divergent_ranks(
    logs: CollectiveLogs, graph: WaitGraph, end: End, candidates: Sequence[int]
) -> Mapping[int, Divergence]:
    """Return how each candidate that breaks the chain does so."""
    for found in (
        _compare_at_points(logs, graph, candidates),
        _compare_in_groups(logs, end, candidates),
        _compare_with_all(logs, end, candidates),
    ):
        divergent: dict[int, Divergence] = {}
        for rank, divergence in found:
            divergent.setdefault(rank, divergence)
        if divergent:
            return divergent
    return {}


def has_many_orders(logs: CollectiveLogs, end: End, candidates: Sequence[int]) -> bool:
    """Return whether no single rank breaks the chain: two ranks or more call groups in an order of
    their own.

    At most MAX_CANDIDATES are compared. If no rank is part of all their pairs, none is part of all
    pairs, so True is certain. False may be wrong: the verdict then keeps its doubt.
    """
    pairs = _find_incomparable(_count_in_cycle(logs, end), candidates[:MAX_CANDIDATES])
    return bool(pairs) and not _in_all(pairs, candidates)


def _compare_at_points(
    logs: CollectiveLogs, graph: WaitGraph, candidates: Sequence[int]
) -> Iterator[tuple[int, Divergence]]:
    """Compare candidates with other ranks that are in the call they are in, or have not come to."""
    suspected = set(candidates)
    for point in graph.points:
        if point.kind is not PointKind.COLLECTIVE:
            continue
        there = suspected.intersection(point.waiting)
        late = suspected.intersection(point.missing)
        others = [rank for rank in point.waiting if rank not in suspected]
        if not others or not (there or late):
            continue
        usual = find_agreed([count_calls(logs, rank) for rank in others])
        for rank in sorted(there | late):
            relation = Relation.BEHIND if rank in late else Relation.SAME
            if broken := find_break(count_calls(logs, rank), usual, relation):
                role, by = broken
                yield rank, CountAtPoint(role, usual[role], by, point)


def _compare_in_groups(
    logs: CollectiveLogs, end: End, candidates: Sequence[int]
) -> Iterator[tuple[int, Divergence]]:
    """Compare candidates with the other ranks of each group in the cycle, wherever they are."""
    groups = {point.group.id: point.group for point in end.points if point.group is not None}
    for group in groups.values():
        members = set(group.members)
        if exchange_messages(logs, members):
            continue
        others = [rank for rank in end.ranks if rank in members and rank not in candidates]
        counts = [count_calls_and_messages(logs, rank) for rank in others]
        for rank in candidates:
            own = count_calls_and_messages(logs, rank) if rank in members else {}
            for other, theirs in zip(others, counts, strict=True):
                if own.keys() != theirs.keys():
                    continue
                if broken := find_break(own, theirs, Relation.UNKNOWN):
                    yield rank, CountBeside(*broken, other)
                    break


def _compare_with_all(
    logs: CollectiveLogs, end: End, candidates: Sequence[int]
) -> Iterator[tuple[int, Divergence]]:
    """Compare each candidate with every rank, and take the one without which the chain holds.

    A rank that reduced over its tensor parallel group where the others use the data parallel one is
    ahead of several ranks in the first and behind them in the second. Those fit together. If two
    sets of ranks call the groups in different orders, many pairs of ranks do not.
    """
    counts = _count_in_cycle(logs, end)
    pairs = _find_incomparable(counts, candidates)
    for rank in _in_all(pairs, candidates):
        others = [other for one, other in pairs if one == rank]
        by_one_call = all(
            find_break(counts[rank], counts[other], Relation.UNKNOWN) for other in others
        )
        if len(others) >= LEAST_BREAKS and by_one_call:
            yield rank, _compare_counts(logs, counts, rank, others)
            return


def _count_in_cycle(logs: CollectiveLogs, end: End) -> dict[int, CallCounts]:
    """Count the calls of all ranks in the groups of a cycle; none if they exchange messages."""
    groups = {point.group.id: point.group for point in end.points if point.group is not None}
    members = {rank for group in groups.values() for rank in group.members}
    if exchange_messages(logs, members):
        return {}
    return {rank: count_calls(logs, rank) for rank in sorted(members)}


def _find_incomparable(
    counts: Mapping[int, CallCounts], candidates: Collection[int]
) -> tuple[Pair, ...]:
    """Return each candidate with each rank that it does not fit with; two candidates twice."""
    return tuple(
        (one, other)
        for one in candidates
        if one in counts
        for other, theirs in counts.items()
        if not are_comparable(counts[one], theirs)
    )


def _in_all(pairs: Sequence[Pair], candidates: Sequence[int]) -> list[int]:
    """Return the candidates that are part of every pair; none without any pair."""
    if not pairs:
        return []
    shared = set(pairs[0]).intersection(*pairs[1:])
    return [rank for rank in candidates if rank in shared]


def _compare_counts(
    logs: CollectiveLogs, counts: Mapping[int, CallCounts], rank: int, others: Sequence[int]
) -> CountsBesideAll:
    """Compare the rank with the one whose counts are nearest."""
    nearest = min(
        others,
        key=lambda other: (
            sum(abs(by) for _, by in differences(counts[rank], counts[other])),
            other,
        ),
    )
    differing = differences(counts[rank], counts[nearest])
    return CountsBesideAll(
        nearest,
        tuple(CountDifference(role, by, _only_group(logs, rank, role)) for role, by in differing),
    )


def _only_group(logs: CollectiveLogs, rank: int, role: Role) -> Group | None:
    groups = (logs.groups[log.group] for log in logs.logs_of(rank))
    own = [group for group in groups if role_of(group) == role]
    return own[0] if len(own) == 1 else None
