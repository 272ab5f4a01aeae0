"""Ranks wait for each other in a cycle: calls of two groups made in different orders."""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.diagnosis import doubts
from watchtower.diagnosis.accusation import Accusation, Reason, ReasonKind, Tier
from watchtower.diagnosis.doubts import Doubt
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.reasons import CALLED_WEIGHT, LOG_WEIGHT, stack_reason
from watchtower.diagnosis.waits.callsites import site_of
from watchtower.diagnosis.waits.divergent_rank import has_many_orders
from watchtower.diagnosis.waits.graph import End, EndKind
from watchtower.diagnosis.waits.odd_rank import find_cycle_breakers
from watchtower.wire.verdict import Cause

MAX_QUOTED = 4
"""Ranks of the cycle whose stack is quoted."""

SHORT_CYCLE = 2
"""Two who wait for each other in two groups take them in two orders."""


def find(picture: Picture) -> Accusation | None:
    """Accuse the ranks of the cycle that most others wait for; which came first is not known.

    Where some of them are on every path of the cycle and others are not, those some.
    """
    if picture.graph is None or picture.split:
        return None
    cycles = [end for end in picture.graph.ends if end.kind is EndKind.CYCLE]
    if not cycles or picture.missing_sends:
        return None
    cycle = cycles[0]
    breakers = find_cycle_breakers(cycle)
    suspects = tuple(picture.by_rank[rank] for rank in breakers or cycle.ranks)
    weight = LOG_WEIGHT if cycle.certain else CALLED_WEIGHT
    reasons = [Reason(ReasonKind.CYCLE, weight, cycle.ranks, cycle)]
    for item in suspects[:MAX_QUOTED]:
        reasons += stack_reason(item)
    return Accusation(
        cause=Cause.COLLECTIVE_CYCLE,
        tier=Tier.WAIT_FOR,
        suspects=suspects,
        reasons=tuple(reasons),
        doubts=_find_doubts(picture, cycle, breakers),
        advice=("compare_order", "read_places"),
        about=cycle,
    )


def _find_doubts(picture: Picture, cycle: End, breakers: Sequence[int] | None) -> tuple[Doubt, ...]:
    if breakers is None:
        # Members that gave no logs are waited for, too, and may have come all the same.
        return (doubts.CYCLE_UNPROVEN,)
    if len({point.group is None for point in cycle.points}) > 1:
        return (doubts.MIXED_CYCLE,)
    assert picture.collective_logs is not None
    if cycle.points[0].group is None and picture.collective_logs.queued.intersection(cycle.ranks):
        return (doubts.OTHER_MESSAGES,)
    return (doubts.ONE_OF_CYCLE,) if _may_be_one(picture, cycle, breakers) else ()


def _may_be_one(picture: Picture, cycle: End, breakers: Sequence[int]) -> bool:
    """Return whether one rank may have led all into a cycle of collectives.

    Not where all are at one place of their program, and not where counts show two orders.
    """
    if len(breakers) <= SHORT_CYCLE or cycle.points[0].group is None:
        return False
    assert picture.collective_logs is not None
    sites = {site_of(picture.by_rank[rank]) for rank in breakers}
    return len(sites) > 1 and not has_many_orders(picture.collective_logs, cycle, breakers)
