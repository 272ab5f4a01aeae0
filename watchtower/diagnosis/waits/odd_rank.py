"""Finds the odd rank of a cycle: the one rank that calls other collectives than its peers.

A rank that leaves a call out, makes a call twice or swaps two calls is soon in a cycle with all
ranks that wait for it, and it breaks that cycle: without it, no ranks would wait in a cycle. Where
its neighbours would break it too, the end of a loop or the call counts (`divergent_rank`) show
which of them is the odd one.

Ranks whose calls fit together never wait for each other in a cycle: the rank that is furthest
behind, in any order of groups, waits for no other. So if one rank alone calls something else, every
cycle goes through it, and without it the others would all wait in a line that ends with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from watchtower.diagnosis.waits.callsites import ProgramOrder, Site, compare_sites, site_of
from watchtower.diagnosis.waits.divergent_rank import (
    MAX_CANDIDATES,
    Divergence,
    find_divergent_ranks,
)
from watchtower.diagnosis.waits.graph import End, EndKind, WaitGraph
from watchtower.diagnosis.waits.positions import Positions

MAX_TRIES = 16
"""Ranks tried before an end is said to have no breaker. Each rank that is not a breaker takes all
ranks with it that are not in a cycle found without it, so real jobs take two or three tries."""


class Sign(Enum):
    """A sign of which side of a disagreement is wrong."""

    BREAKS_CYCLE = "breaks_cycle"
    """Without this rank, no ranks would wait for each other."""
    OTHER_GROUPS = "other_groups"
    """All other groups of this kind made the call of the many."""


@dataclass(frozen=True, slots=True)
class OddRank:
    """The one rank that differs from the others in its cycle."""

    rank: int
    end: End
    order: ProgramOrder
    """Where it waits, seen from ranks that are not candidates."""
    proof: Sign | Divergence | None = None
    """The proof that it is this rank; null where its place shows it."""


def find_candidates(graph: WaitGraph | None) -> tuple[tuple[End, tuple[int, ...]], ...]:
    """Return each cycle with the ranks that may be the odd one; no rank where none may be."""
    ends = graph.ends if graph else ()
    cycles = [end for end in ends if end.kind is EndKind.CYCLE]
    return tuple((end, find_cycle_breakers(end) or ()) for end in cycles)


def find_odd_rank(positions: Positions) -> OddRank | None:
    """Find the odd rank, in the cycle that most other ranks wait for."""
    for end, candidates in find_candidates(positions.graph):
        if candidates and (found := _choose(positions, end, candidates)):
            return found
    return None


def _choose(positions: Positions, end: End, candidates: Sequence[int]) -> OddRank | None:
    assert positions.graph is not None
    # Stages of a pipeline that wait for messages of each other are at other places in any case.
    has_collective = any(point.group is not None for point in end.points)
    innocent = (
        _sites_of_others(positions, positions.graph, candidates) if has_collective else set[Site]()
    )
    orders = {rank: _order_of(positions, rank, innocent) for rank in candidates}
    if len(candidates) == 1:
        return OddRank(candidates[0], end, orders[candidates[0]], Sign.BREAKS_CYCLE)
    for side in (ProgramOrder.LEFT_LOOP, ProgramOrder.IN_LOOP):
        there = [rank for rank, order in orders.items() if order is side]
        if len(there) == 1:
            return OddRank(there[0], end, side)
    logs = positions.collective_logs
    if len(candidates) > MAX_CANDIDATES or logs is None:
        return None
    divergent = find_divergent_ranks(logs, positions.graph, end, candidates)
    if len(divergent) != 1:
        return None
    ((rank, divergence),) = divergent.items()
    return OddRank(rank, end, orders[rank], divergence)


def _sites_of_others(
    positions: Positions, graph: WaitGraph, candidates: Sequence[int]
) -> set[Site]:
    """Return where the ranks wait that are not candidates."""
    others = graph.blocked_in.keys() - set(candidates)
    return {site for rank in others if (site := site_of(positions.by_rank[rank]))}


def _order_of(positions: Positions, rank: int, innocent: Iterable[Site]) -> ProgramOrder:
    """Return where a rank waits, seen from all of these sites; `UNKNOWN` where they disagree."""
    own = site_of(positions.by_rank[rank])
    orders = {compare_sites(own, site) for site in innocent}
    return orders.pop() if len(orders) == 1 else ProgramOrder.UNKNOWN


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
            return None if candidates is None else _find_all_breakers(end, edges, order, without)
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


def _find_all_breakers(
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
