"""Finds the breakers of a cycle: the ranks without any one of which no ranks would wait in a cycle.

Ranks whose calls fit together never wait for each other in a cycle: the rank that is furthest
behind, in any order of groups, waits for no other. So if one rank alone calls something else, every
cycle goes through it, and without it the others would all wait in a line that ends with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.core.diagnosis.waits.graph import End

MAX_TRIES = 16
"""Ranks tried before an end is said to have no breaker. Each rank that is not a breaker takes all
ranks with it that are not in a cycle found without it, so real jobs take two or three tries."""


def find_cycle_breakers(end: End) -> tuple[int, ...] | None:
    """Return the ranks that every cycle of an end goes through. Takes linear time.

    Null where no cycle has ranks that are all known not to have come.
    """
    offset = len(end.ranks)
    edges = _edges_of(end)
    candidates: set[int] | None = None
    for _ in range(MAX_TRIES):
        without = min(candidates, default=-1) if candidates is not None else -1
        order, left = _peel(edges, without)
        if not left:
            return None if candidates is None else _find_all(end, edges, order, without)
        cycle = {node for node in _walk(edges, left) if node < offset}
        candidates = cycle if candidates is None else candidates & cycle
        if not candidates:
            break
    return ()


def _edges_of(end: End) -> list[list[int]]:
    """Number ranks, then points: a rank leads to its points, a point to those it waits for."""
    index_of = {rank: index for index, rank in enumerate(end.ranks)}
    edges: list[list[int]] = [[] for _ in end.ranks]
    for at, point in enumerate(end.points, start=len(end.ranks)):
        for rank in point.waiting:
            if rank in index_of:
                edges[index_of[rank]].append(at)
        edges.append([index_of[rank] for rank in point.missing if rank in index_of])
    return edges


def _peel(edges: Sequence[Sequence[int]], without: int) -> tuple[list[int], set[int]]:
    """Remove the nodes from which no edge leads on, until every node has an edge left.

    Returns the nodes in the order of their removal, and those that stay: in a cycle, or before one.
    """
    into: list[list[int]] = [[] for _ in edges]
    open_edges = [0] * len(edges)
    for node, targets in enumerate(edges):
        if node != without:
            for target in targets:
                into[target].append(node)
                open_edges[node] += 1
    order = [node for node, count in enumerate(open_edges) if not count]
    for node in order:
        for before in into[node]:
            open_edges[before] -= 1
            if not open_edges[before]:
                order.append(before)
    return order, set(range(len(edges))).difference(order)


def _walk(edges: Sequence[Sequence[int]], left: set[int]) -> list[int]:
    """Follow edges inside of `left` until they close a cycle; return its nodes."""
    node, met, path = min(left), dict[int, int](), list[int]()
    while node not in met:
        met[node] = len(path)
        path.append(node)
        node = next(target for target in edges[node] if target in left)
    return path[met[node] :]


def _find_all(
    end: End, edges: Sequence[Sequence[int]], order: Sequence[int], known: int
) -> tuple[int, ...]:
    """Return all ranks that every cycle goes through, one of which is `known`.

    The other nodes form a line in which each leads to earlier ones only. A cycle is a path from the
    known rank through the line and back to it. A rank that no edge jumps over is on every such
    path.
    """
    position = {node: at for at, node in enumerate(order) if node != known}
    position[known] = -1
    breakers = [known]
    reach = min((position[target] for target in edges[known]), default=-1)
    for node in sorted((n for n in position if n != known), key=position.__getitem__, reverse=True):
        at = position[node]
        if reach >= at and node < len(end.ranks):
            breakers.append(node)
        reach = min([reach, *(position[target] for target in edges[node])])
    return tuple(sorted(end.ranks[node] for node in breakers))
