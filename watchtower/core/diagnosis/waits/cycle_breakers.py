"""Finds the ranks that every circle of a cycle goes through.

Ranks whose calls fit together never wait for each other in a circle: whoever is behind, in any
order of groups, waits for nobody. So if one rank alone calls something else, every circle goes
through it, and without it the others would all wait in a line that ends with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.core.diagnosis.waits.graph import End

MAX_TRIES = 16
"""Ranks tried before a cycle is said to have no such rank; each that is none takes a whole circle
of others with it, so that real cycles take two or three."""


def find_cut_ranks(end: End) -> tuple[int, ...] | None:
    """Give the ranks of a cycle without any one of which there would be none. Takes linear time.

    Null where there is no circle of ranks that are all known not to have come.
    """
    offset = len(end.ranks)
    edges = _edges_of(end)
    candidates: set[int] | None = None
    for _ in range(MAX_TRIES):
        without = min(candidates, default=-1) if candidates is not None else -1
        order, left = _peel(edges, without)
        if not left:
            return None if candidates is None else _cuts(end, edges, order, without)
        circle = {node for node in _walk(edges, left) if node < offset}
        candidates = circle if candidates is None else candidates & circle
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
    """Take off, again and again, what leads nowhere.

    Gives the nodes in the order in which they went, and those that stay: in or before a circle.
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
    """Follow edges inside of `left` until they close a circle."""
    node, met, path = min(left), dict[int, int](), list[int]()
    while node not in met:
        met[node] = len(path)
        path.append(node)
        node = next(target for target in edges[node] if target in left)
    return path[met[node] :]


def _cuts(
    end: End, edges: Sequence[Sequence[int]], order: Sequence[int], known: int
) -> tuple[int, ...]:
    """Give all ranks that every circle goes through, one of which is `known`.

    The others stand in a line in which each leads to earlier ones only. A circle is a way from the
    known rank through the line and back to it; who cannot be jumped over is on every way.
    """
    position = {node: at for at, node in enumerate(order) if node != known}
    position[known] = -1
    cuts = [known]
    reach = min((position[target] for target in edges[known]), default=-1)
    for node in sorted((n for n in position if n != known), key=position.__getitem__, reverse=True):
        at = position[node]
        if reach >= at and node < len(end.ranks):
            cuts.append(node)
        reach = min([reach, *(position[target] for target in edges[node])])
    return tuple(sorted(end.ranks[node] for node in cuts))
