"""Finds the ranks on which a whole cycle hangs: without any one of them nobody would wait in it.

Of N ranks that wait for each other and of which one made another call than the rest, that one is on
every way round, and no other is. Where two sides are equal, or there are several ways, no single
rank is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from watchtower.core.diagnosis.waiting.components import find_components
from watchtower.core.diagnosis.waiting.graph import End
from watchtower.core.diagnosis.waiting.records import Records

MAX_TRIED = 16
"""Ranks of the shortest way round that are tried, each in time linear in the cycle. A way round
that is longer goes over that many groups, and no single rank explains it."""

Edges = list[list[int]]

Counts = tuple[tuple[int, int], ...]
"""Of each group of a rank, in the order they were made: its size, and the calls in it."""


def find_odd_one(records: Records, cycle: End, breakers: Sequence[int]) -> int | None:
    """Find the one of several breakers that is one call off from all who are where it is.

    Whoever comes to the same call of a group by the same program has made as many calls in its
    other groups. More than one call of difference, or in more than one group, is another program.
    """
    odd = [rank for rank in breakers if _is_odd(records, cycle, rank, frozenset(breakers))]
    return odd[0] if len(odd) == 1 else None


def _is_odd(records: Records, cycle: End, rank: int, breakers: frozenset[int]) -> bool:
    own = _count_calls(records, rank)
    differences = {
        _compare(own, _count_calls(records, other))
        for point in cycle.points
        if point.group is not None and rank in point.waiting
        for other in point.waiting
        if other not in breakers
    }
    return 1 in differences and 0 not in differences


def _count_calls(records: Records, rank: int) -> Counts:
    return tuple(
        (len(records.groups[log.group].members), log.called) for log in records.logs_of(rank)
    )


def _compare(one: Counts, other: Counts) -> int | None:
    """Count the calls that differ; null when these are not groups of the same kinds."""
    if [size for size, _ in one] != [size for size, _ in other]:
        return None
    return sum(abs(mine - theirs) for (_, mine), (_, theirs) in zip(one, other, strict=True))


def find_breakers(cycle: End) -> tuple[int, ...] | None:
    """Give the ranks that are on every way round; null when no way round is known for certain.

    Only ranks that are known not to have come to a point count as awaited there.
    """
    ranks = list(cycle.ranks)
    edges = _known_edges(cycle, ranks)
    way = _find_way_round(edges, len(ranks))
    if way is None:
        return None
    if len(way) > MAX_TRIED:
        return ()
    return tuple(sorted(ranks[node] for node in way if not _has_cycle(edges, without=node)))


def _known_edges(cycle: End, ranks: Sequence[int]) -> Edges:
    """Nodes are the ranks, then the points."""
    node_of = {rank: node for node, rank in enumerate(ranks)}
    edges: Edges = [[] for _ in ranks]
    for index, point in enumerate(cycle.points):
        for rank in point.waiting:
            if rank in node_of:
                edges[node_of[rank]].append(len(ranks) + index)
    edges += [[node_of[r] for r in point.missing if r in node_of] for point in cycle.points]
    return edges


def _find_way_round(edges: Edges, ranks: int) -> list[int] | None:
    """Find the shortest way from some rank back to itself, and give the ranks on it."""
    _, components = find_components(edges)
    nodes = next((nodes for nodes in components if len(nodes) > 1), None)
    if nodes is None:
        return None
    start = min(nodes)
    came_from = {start: start}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for target in edges[node]:
            if target == start:
                return [step for step in _walk_back(came_from, node) if step < ranks]
            if target not in came_from:
                came_from[target] = node
                queue.append(target)
    return None


def _walk_back(came_from: dict[int, int], node: int) -> list[int]:
    way = [node]
    while came_from[way[-1]] != way[-1]:
        way.append(came_from[way[-1]])
    return way


def _has_cycle(edges: Edges, without: int) -> bool:
    left = [
        [] if node == without else [t for t in targets if t != without]
        for node, targets in enumerate(edges)
    ]
    _, components = find_components(left)
    return any(len(nodes) > 1 for nodes in components)
