"""Ranks wait for each other in a circle: calls of two groups made in different orders."""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.core.diagnosis.evidence_wording import accuse, stack_evidence, where_of
from watchtower.core.diagnosis.finding import Finding, Tier
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position
from watchtower.core.diagnosis.waits.callsites import site_of
from watchtower.core.diagnosis.waits.cycle_breakers import find_cycle_breakers
from watchtower.core.diagnosis.waits.divergent_rank import has_many_orders
from watchtower.core.diagnosis.waits.graph import End, EndKind
from watchtower.core.diagnosis.waits.points import WaitPoint
from watchtower.core.diagnosis.waits.wording import RECORD_WEIGHT, UNSURE_WEIGHT, name_point
from watchtower.core.diagnosis.weighing import DOUBT_CEILING, weigh
from watchtower.core.phrases import join_words, say_duration
from watchtower.core.ranksets import format_ranks, name_ranks
from watchtower.wire.verdict import Cause, Evidence

MAX_QUOTED = 4
"""Ranks of the cycle whose stack is quoted."""

MIXED_CEILING = 0.55
"""Over messages and collectives together a circle also closes when one of the ranks has left a call
out or made it twice, and no count may tell which one."""

UNTOLD_CEILING = 0.55
"""Each of three or more ranks in one circle may be the one that made a call in the wrong group, and
the others are innocent then."""

SHORT_CIRCLE = 2
"""Two who wait for each other in two groups take them in two orders."""

MAX_POINTS = 3
"""Wait points named in the summary."""


def find(picture: Picture) -> Finding | None:
    """Accuse the ranks of the cycle that most others wait for; whoever came first is not known.

    Where some of them are on every way round and others are not, those some.
    """
    if picture.graph is None or picture.split:
        return None
    cycles = [end for end in picture.graph.ends if end.kind is EndKind.CYCLE]
    if not cycles or picture.missing_sends:
        return None
    # Members that gave no records are waited for, too, and may have come all the same: `certain`.
    cut_ranks = find_cycle_breakers(cycles[0])
    return _accuse(picture, cycles[0], cut_ranks or (), certain=cut_ranks is not None)


def _accuse(picture: Picture, cycle: End, cut_ranks: tuple[int, ...], *, certain: bool) -> Finding:
    members = [picture.by_rank[rank] for rank in cut_ranks or cycle.ranks]
    waits = [_say_point(point, cycle) for point in cycle.points]
    evidence = [
        Evidence(
            source="records",
            text=f"a cycle: {join_words(waits)}",
            ranks=format_ranks(cycle.ranks),
            weight=RECORD_WEIGHT if cycle.certain else UNSURE_WEIGHT,
        )
    ]
    for item in members[:MAX_QUOTED]:
        evidence += stack_evidence(item)
    return Finding(
        cause=Cause.COLLECTIVE_CYCLE,
        tier=Tier.WAIT_FOR,
        confidence=weigh(
            evidence,
            ceiling=_find_ceiling(picture, cycle, cut_ranks) if certain else DOUBT_CEILING,
        ),
        suspects=tuple(
            accuse(item, Cause.COLLECTIVE_CYCLE, _why(item, cycle.points)) for item in members
        ),
        summary=(
            f"{name_ranks(cycle.ranks)} wait for each other: {join_words(waits[:MAX_POINTS])}, for "
            f"{say_duration(members[0].age_s)}"
        ),
        evidence=tuple(evidence),
        next_steps=(
            "compare the order in which these ranks call the collectives of these groups; it must "
            "be the same on every rank that is in both",
            f"read {join_words(sorted({where_of(item) or '' for item in members} - {''})[:2])}",
        ),
    )


def _find_ceiling(picture: Picture, cycle: End, cut_ranks: Sequence[int]) -> float:
    if len({point.group is None for point in cycle.points}) > 1:
        return MIXED_CEILING
    return UNTOLD_CEILING if _may_be_one(picture, cycle, cut_ranks) else 1.0


def _may_be_one(picture: Picture, cycle: End, cut_ranks: Sequence[int]) -> bool:
    """Tell whether one rank may have led all into a circle of collectives.

    Not where all are at one place of their program, and not where counts show two orders.
    """
    if len(cut_ranks) <= SHORT_CIRCLE or cycle.points[0].group is None:
        return False
    assert picture.records is not None
    sites = {site_of(picture.by_rank[rank]) for rank in cut_ranks}
    return len(sites) > 1 and not has_many_orders(picture.records, cycle, cut_ranks)


def _say_point(point: WaitPoint, cycle: End) -> str:
    inside = set(cycle.ranks)
    waiting = [rank for rank in point.waiting if rank in inside]
    awaited = [rank for rank in point.held_up_by if rank in inside]
    verb = "waits" if len(waiting) == 1 else "wait"
    return f"{name_ranks(waiting)} {verb} in {name_point(point)} for {name_ranks(awaited)}"


def _why(position: Position, points: tuple[WaitPoint, ...]) -> str:
    own = [point for point in points if position.rank in point.waiting]
    place = f" at {where_of(position)}" if where_of(position) else ""
    return f"waits in {join_words([name_point(point) for point in own])}{place}"
