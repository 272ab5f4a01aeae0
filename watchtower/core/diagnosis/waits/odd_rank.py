"""Finds the odd rank of a cycle: the one rank that calls other collectives than its peers.

A rank that leaves a call out, makes a call twice or swaps two calls is soon in a cycle with all
ranks that wait for it, and it breaks that cycle (`cycle_breakers`). Where its neighbours would
break it too, the end of a loop or the call counts (`divergent_rank`) show which of them is the odd
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from watchtower.core.diagnosis.waits.callsites import ProgramOrder, Site, compare_sites, site_of
from watchtower.core.diagnosis.waits.cycle_breakers import find_cycle_breakers
from watchtower.core.diagnosis.waits.divergent_rank import Divergence, find_divergent_ranks
from watchtower.core.diagnosis.waits.graph import End, EndKind, WaitGraph
from watchtower.core.diagnosis.waits.positions import Positions

MAX_CANDIDATES = 8
"""Ranks whose counts are compared. More of them are a pipeline, in which counts differ anyway."""


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
    """What shows that it is this rank; null where its place shows it."""


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
    innocent = _sites_of_others(positions, positions.graph, candidates)
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
