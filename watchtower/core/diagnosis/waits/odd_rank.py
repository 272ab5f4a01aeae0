"""Finds the one rank of a cycle that calls other collectives than its peers.

A rank that leaves a call out, makes one twice or two in the other order is soon in a circle with
all who wait for it. It is on every circle (`cut_ranks`); where its neighbours are too, the end of a
loop or the counts of groups of the same role tell it from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from watchtower.core.diagnosis.waits.call_counts import find_off
from watchtower.core.diagnosis.waits.callsites import Order, Site, compare_sites, site_of
from watchtower.core.diagnosis.waits.cycle_breakers import find_cut_ranks
from watchtower.core.diagnosis.waits.divergent_rank import find_crosser
from watchtower.core.diagnosis.waits.graph import End, EndKind, WaitGraph
from watchtower.core.diagnosis.waits.positions import Positions

MAX_CANDIDATES = 8
"""Ranks told apart by their counts; a longer line of them is a pipeline, where counts differ."""

ON_EVERY_CIRCLE = "without it no ranks would wait for each other"


@dataclass(frozen=True, slots=True)
class Alone:
    """A rank that alone differs from those in the same cycle."""

    rank: int
    end: End
    order: Order
    """Where it waits, seen from ranks that are not under suspicion."""
    off: str = ""
    """What shows that it is this one, as a clause about it; empty where its place does."""


def find_candidates(graph: WaitGraph | None) -> tuple[tuple[End, tuple[int, ...]], ...]:
    """Give each cycle, and its ranks that may be the one which differs; none where none may."""
    ends = graph.ends if graph else ()
    return tuple((end, find_cut_ranks(end) or ()) for end in ends if end.kind is EndKind.CYCLE)


def find_alone(positions: Positions) -> Alone | None:
    """Find the rank that differs alone, in the cycle that most others wait for."""
    for end, candidates in find_candidates(positions.graph):
        if candidates and (found := _tell_apart(positions, end, candidates)):
            return found
    return None


def _tell_apart(positions: Positions, end: End, candidates: Sequence[int]) -> Alone | None:
    innocent = _sites_of_others(positions, candidates)
    orders = {rank: _order_of(positions, rank, innocent) for rank in candidates}
    if len(candidates) == 1:
        return Alone(candidates[0], end, orders[candidates[0]], ON_EVERY_CIRCLE)
    for side in (Order.LEFT_LOOP, Order.IN_LOOP):
        there = [rank for rank, order in orders.items() if order is side]
        if len(there) == 1:
            return Alone(there[0], end, side)
    if len(candidates) > MAX_CANDIDATES or positions.records is None:
        return None
    records = positions.records
    off = find_off(positions, records, end, candidates) or find_crosser(records, end, candidates)
    if len(off) != 1:
        return None
    ((rank, how),) = off.items()
    return Alone(rank, end, orders[rank], how)


def _sites_of_others(positions: Positions, candidates: Sequence[int]) -> set[Site]:
    """Give where those wait who cannot be the one."""
    assert positions.graph is not None
    others = positions.graph.blocked_in.keys() - set(candidates)
    return {site for rank in others if (site := site_of(positions.by_rank[rank]))}


def _order_of(positions: Positions, rank: int, innocent: Iterable[Site]) -> Order:
    """Say where a rank waits, seen from all of these sites; `UNKNOWN` where they disagree."""
    own = site_of(positions.by_rank[rank])
    orders = {compare_sites(own, site) for site in innocent}
    return orders.pop() if len(orders) == 1 else Order.UNKNOWN
