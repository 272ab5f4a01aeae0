"""Finds the rank of a cycle whose call counts break the chain (see `call_counts`).

The candidates are compared with three sets of ranks, one after the other. The first comparison in
which some candidate breaks the chain decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from watchtower.diagnosis.waits.call_counts import (
    CallCounts,
    Relation,
    Role,
    are_comparable,
    count_calls,
    count_calls_and_messages,
    differences,
    exchange_messages,
    find_agreed,
    find_break,
    role_of,
)
from watchtower.diagnosis.waits.collective_logs import CollectiveLogs, Group
from watchtower.diagnosis.waits.graph import End, WaitGraph
from watchtower.diagnosis.waits.points import PointKind, WaitPoint

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
