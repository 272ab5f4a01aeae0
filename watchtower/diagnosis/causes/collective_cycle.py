"""Ranks wait for each other in a cycle: calls of two groups made in different orders."""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.diagnosis.accusation import CANDIDATE, Accusation, Doubt, Reason, Tier
from watchtower.diagnosis.domain import Line
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.reasons import CALLED_WEIGHT, LOG_WEIGHT, stack_reason
from watchtower.diagnosis.waits.callsites import site_of
from watchtower.diagnosis.waits.divergent_rank import has_many_orders
from watchtower.diagnosis.waits.graph import End, EndKind, name_point
from watchtower.diagnosis.waits.odd_rank import find_cycle_breakers
from watchtower.diagnosis.words import where_of, write_at
from watchtower.wire.verdict import Cause, Domain
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import format_duration, join_sentences, join_words

WHOM = (Line(Domain.USER_CODE),)

MAX_QUOTED = 4
"""Ranks of the cycle whose stack is quoted."""

MAX_POINTS = 3
"""Wait points named in a summary."""

SHORT_CYCLE = 2
"""Two who wait for each other in two groups take them in two orders."""

OTHER_MESSAGES = Doubt(
    "other_messages", CANDIDATE, "the messages may have been sent by isend(), which is not counted"
)
CYCLE_UNPROVEN = Doubt(
    "cycle_unproven",
    CANDIDATE,
    "some ranks of the cycle have no collective log, and may have made the calls",
)
MIXED_CYCLE = Doubt("mixed_cycle", 0.55, "a skipped or repeated call would cause the same cycle")
ONE_OF_CYCLE = Doubt(
    "one_of_cycle", 0.55, "one rank may have called the wrong group, and it is not known which rank"
)

COMPARE_ORDER = (
    "compare the order in which these ranks call the collectives of these groups: it must be the "
    "same on every rank of both groups"
)
READ_PLACES = "read {places}"


def find(picture: Picture) -> Accusation | None:
    """Accuse the ranks of the cycle that most others wait for; which came first is not known.

    Where some of them are on every path of the cycle and others are not, those some.
    """
    graph = picture.graph
    if graph is None or picture.split:
        return None
    cycles = [end for end in graph.ends if end.kind is EndKind.CYCLE]
    if not cycles or picture.missing_sends:
        return None
    cycle = cycles[0]
    breakers = find_cycle_breakers(cycle)
    suspects = tuple(picture.by_rank[rank] for rank in breakers or cycle.ranks)
    weight, waits = LOG_WEIGHT if cycle.certain else CALLED_WEIGHT, _write_waits(cycle)
    reasons = [Reason("records", weight, cycle.ranks, f"a cycle: {join_words(waits)}")]
    for item in suspects[:MAX_QUOTED]:
        reasons += stack_reason(item)
    places = sorted({where_of(item) or "" for item in suspects} - {""})

    def why(position: Position) -> str:
        points = [name_point(point) for point in graph.points_of(position.rank)]
        return f"waits in {join_words(points)}{write_at(position)}"

    return Accusation(
        cause=Cause.COLLECTIVE_CYCLE,
        tier=Tier.WAIT_FOR,
        suspects=suspects,
        reasons=tuple(reasons),
        doubts=_find_doubts(picture, cycle, breakers),
        why=why,
        summary=join_sentences(
            f"{name_ranks(cycle.ranks)} have waited for each other for "
            f"{format_duration(suspects[0].age_s)}",
            *waits[:MAX_POINTS],
        ),
        advice=(COMPARE_ORDER, READ_PLACES),
        names={"places": join_words(places[:2])},
    )


def _write_waits(cycle: End) -> list[str]:
    """Return of each wait point "ranks 0-1 wait in all_reduce number 3 of ... for rank 2"."""
    inside, waits = set(cycle.ranks), []
    for point in cycle.points:
        waiting = [rank for rank in point.waiting if rank in inside]
        awaited = [rank for rank in point.held_up_by if rank in inside]
        verb = "waits" if len(waiting) == 1 else "wait"
        waits.append(
            f"{name_ranks(waiting)} {verb} in {name_point(point)} for {name_ranks(awaited)}"
        )
    return waits


def _find_doubts(picture: Picture, cycle: End, breakers: Sequence[int] | None) -> tuple[Doubt, ...]:
    if breakers is None:
        # Members that gave no logs are waited for, too, and may have come all the same.
        return (CYCLE_UNPROVEN,)
    if len({point.group is None for point in cycle.points}) > 1:
        return (MIXED_CYCLE,)
    assert picture.collective_logs is not None
    if cycle.points[0].group is None and picture.collective_logs.queued.intersection(cycle.ranks):
        return (OTHER_MESSAGES,)
    return (ONE_OF_CYCLE,) if _may_be_one(picture, cycle, breakers) else ()


def _may_be_one(picture: Picture, cycle: End, breakers: Sequence[int]) -> bool:
    """Return whether one rank may have led all into a cycle of collectives.

    Not where all are at one place of their program, and not where counts show two orders.
    """
    if len(breakers) <= SHORT_CYCLE or cycle.points[0].group is None:
        return False
    assert picture.collective_logs is not None
    sites = {site_of(picture.by_rank[rank]) for rank in breakers}
    return len(sites) > 1 and not has_many_orders(picture.collective_logs, cycle, breakers)
