"""Finds the one rank of a cycle that calls other collectives than its peers.

A rank that leaves a call out, makes one twice or two in the other order is soon in a circle with
all who wait for it. It is on every circle (`cut_ranks`); where its neighbours are too, the end of a
loop or the counts of groups of the same role tell it from them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from watchtower.core.diagnosis.crowd import Standings
from watchtower.core.diagnosis.waiting.callsites import Order, Site, compare_sites, site_of
from watchtower.core.diagnosis.waiting.cut_ranks import find_cut_ranks
from watchtower.core.diagnosis.waiting.graph import End, EndKind, PointKind, WaitPoint
from watchtower.core.diagnosis.waiting.records import Group, Records

MAX_CANDIDATES = 8
"""Ranks told apart by their counts; a longer line of them is a pipeline, where counts differ."""

ONE_CALL = 1
"""How far a count may be off to tell of a fault in this step: groups that are used more often
on some ranks for good reason are further apart, after a few steps."""

Role = tuple[str, int]
"""Name of a group without its numbers, and size: "tp3" of four ranks has the role of "tp0"."""


@dataclass(frozen=True, slots=True)
class Alone:
    """A rank that alone differs from those in the same cycle."""

    rank: int
    end: End
    order: Order
    """Where it waits, seen from ranks that are not under suspicion."""
    off: str = ""
    """How its count differs, as a clause about it; empty where circles alone tell."""


def find_candidates(standings: Standings) -> tuple[tuple[End, tuple[int, ...]], ...]:
    """Give each cycle, and its ranks that may be the one which differs; none where none may."""
    ends = standings.graph.ends if standings.graph else ()
    return tuple((end, find_cut_ranks(end)) for end in ends if end.kind is EndKind.CYCLE)


def find_alone(standings: Standings) -> Alone | None:
    """Find the rank that differs alone, in the cycle that most others wait for."""
    for end, candidates in standings.once(find_candidates):
        if candidates and (found := _tell_apart(standings, end, candidates)):
            return found
    return None


def _tell_apart(standings: Standings, end: End, candidates: Sequence[int]) -> Alone | None:
    innocent = _sites_of_others(standings, candidates)
    orders = {rank: _order_of(standings, rank, innocent) for rank in candidates}
    if len(candidates) == 1:
        return Alone(candidates[0], end, orders[candidates[0]])
    for side in (Order.LEFT_LOOP, Order.IN_LOOP):
        there = [rank for rank, order in orders.items() if order is side]
        if len(there) == 1:
            return Alone(there[0], end, side)
    if len(candidates) > MAX_CANDIDATES or standings.records is None:
        return None
    off = _find_off(standings, standings.records, candidates)
    if len(off) != 1:
        return None
    ((rank, how),) = off.items()
    return Alone(rank, end, orders[rank], how)


def _sites_of_others(standings: Standings, candidates: Sequence[int]) -> set[Site]:
    """Give where those wait who cannot be the one."""
    assert standings.graph is not None
    others = standings.graph.blocked_in.keys() - set(candidates)
    return {site for rank in others if (site := site_of(standings.by_rank[rank]))}


def _order_of(standings: Standings, rank: int, innocent: Iterable[Site]) -> Order:
    """Say where a rank waits, seen from all of these sites; `UNKNOWN` where they disagree."""
    own = site_of(standings.by_rank[rank])
    orders = {compare_sites(own, site) for site in innocent}
    return orders.pop() if len(orders) == 1 else Order.UNKNOWN


def _find_off(
    standings: Standings, records: Records, candidates: Sequence[int]
) -> dict[int, str]:
    """Find the candidates whose counts differ by one from those of innocent ranks at one point.

    At collective N of a common group all ranks have made as many calls in groups of equal role. Who
    has not come to it has made as many at most.
    """
    assert standings.graph is not None
    suspected = set(candidates)
    off: dict[int, str] = {}
    for point in standings.graph.points:
        if point.kind is not PointKind.COLLECTIVE:
            continue
        fellows = [rank for rank in point.waiting if rank not in suspected]
        there = suspected.intersection(point.waiting)
        late = suspected.intersection(point.missing)
        if fellows and (there or late):
            usual = _usual_tally(records, fellows)
            for rank in sorted(there | late):
                how = _say_off(records, rank, usual, point, is_late=rank in late)
                if how:
                    off.setdefault(rank, how)
    return off


def _usual_tally(records: Records, fellows: Sequence[int]) -> dict[Role, int]:
    """Count the calls in groups of each role, where all of these ranks agree."""
    tallies = [_tally(records, rank) for rank in fellows]
    return {
        role: count
        for role, count in tallies[0].items()
        if all(tally.get(role) == count for tally in tallies)
    }


def _tally(records: Records, rank: int) -> dict[Role, int]:
    tally: dict[Role, int] = defaultdict(int)
    for log in records.logs_of(rank):
        tally[_role_of(records.groups[log.group])] += log.called
    return dict(tally)


def _role_of(group: Group) -> Role:
    return re.sub(r"[\d.]+", "", group.name), len(group.members)


def _say_off(
    records: Records, rank: int, usual: dict[Role, int], point: WaitPoint, *, is_late: bool
) -> str:
    for role, count in _tally(records, rank).items():
        ahead = count - usual.get(role, count)
        if ahead == ONE_CALL or (ahead == -ONE_CALL and not is_late):
            assert point.group is not None
            return (
                f"it has made {count} calls in its groups of {role[1]} ranks, others at "
                f"number {point.number} of their common group {usual[role]}"
            )
    return ""
