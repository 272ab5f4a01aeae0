"""Builds the finding about ranks that are in another call than the rest of their group."""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.core.diagnosis.accusation import MAX_QUOTED
from watchtower.core.diagnosis.evidence_wording import (
    accuse,
    name_rank,
    ranks_of,
    say_likewise,
    stack_evidence,
    where_of,
)
from watchtower.core.diagnosis.finding import Finding, Tier
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position
from watchtower.core.diagnosis.waits.callsites import Order
from watchtower.core.diagnosis.waits.mismatches import Ground, Split, is_meeting
from watchtower.core.diagnosis.waits.wording import RECORD_WEIGHT, UNSURE_WEIGHT
from watchtower.core.diagnosis.weighing import DOUBT_CEILING, MISSING_CEILING, weigh
from watchtower.core.phrases import clean, say_duration
from watchtower.core.ranksets import count_ranks, name_ranks
from watchtower.wire.verdict import Cause, Evidence

STACKS_CEILING = 0.75
"""Without records nobody knows which of two calls belongs to which: lines alone speak."""

UNPROVEN_CEILING = 0.8
"""Which rank is certain, but not whether its loop ended or a condition held: no source was read."""

WAIT_WEIGHT = 0.6
LOOP_WEIGHT = 0.6
OFF_WEIGHT = 0.6
"""One side against all the others, or a count that is one off; either fits one fault only."""


def accuse_split(picture: Picture, cause: Cause, next_steps: Sequence[str]) -> Finding | None:
    """Accuse the few of the split, if this is what it means. Null otherwise."""
    split = picture.split
    if split is None or split.cause is not cause:
        return None
    evidence = [_call_evidence(split), *_loop_evidence(split), *_off_evidence(split)]
    for item in (*split.few[:MAX_QUOTED], split.many[0]):
        evidence += stack_evidence(item)
    first = split.few[0]
    return Finding(
        cause=cause,
        tier=Tier.MISMATCH if split.ground is Ground.RECORDS else Tier.STACKS,
        confidence=weigh(evidence, ceiling=_find_ceiling(picture, split)),
        suspects=tuple(accuse(item, cause, _why(item, split)) for item in split.few),
        summary=f"{name_rank(first)} {_why(first, split)}{say_likewise(split.few)}",
        evidence=tuple(evidence),
        next_steps=tuple(next_steps),
    )


def place_of_first(picture: Picture) -> str:
    """Give where the first of the few waits, for advice: "train.py:60 in train"."""
    split = picture.split
    return (where_of(split.few[0]) if split else None) or "its stack"


def _find_ceiling(picture: Picture, split: Split) -> float:
    if split.is_even or split.is_partial:
        return DOUBT_CEILING
    ceiling = MISSING_CEILING if picture.unseen else 1.0
    if split.ground is Ground.STACKS:
        return min(ceiling, STACKS_CEILING if _is_plain(split) else DOUBT_CEILING)
    sure = split.cause is Cause.MISMATCHED_COLLECTIVE or split.order in (
        Order.LEFT_LOOP,
        Order.IN_LOOP,
        Order.SAME_LOOP,
    )
    return ceiling if sure else min(ceiling, UNPROVEN_CEILING)


def _is_plain(split: Split) -> bool:
    """Tell whether lines alone may accuse.

    Ranks in two data calls of one loop may as well be victims in a sub-group of their own, and so
    may several who have met in one.
    """
    if split.order in (Order.LEFT_LOOP, Order.SAME_LINE):
        return True
    meets = split.order is Order.IN_LOOP or is_meeting(split.few_call)
    return meets and len(split.few) == 1


def _why(position: Position, split: Split) -> str:
    place = f" at {where_of(position)}" if where_of(position) else ""
    others = split.many
    theirs = f" at {where_of(others[0])}" if where_of(others[0]) else ""
    verb = "is" if len(others) == 1 else "are"
    at = f" as {split.at}" if split.at else ""
    return (
        f"waits in {clean(split.few_call, 120)}{place} while {count_ranks(len(others))} {verb} in "
        f"{clean(split.many_call, 120)}{theirs}{at}, for {say_duration(position.age_s)}"
        f"{_say_order(split)}{_say_off(split)}"
    )


def _say_off(split: Split) -> str:
    return f"; {split.off}" if split.off else ""


def _say_order(split: Split) -> str:
    return {
        Order.LEFT_LOOP: "; it has left the loop that the others are in",
        Order.IN_LOOP: "; it is still in a loop that the others have left",
        Order.SAME_LOOP: "; both lines are in the same loop",
    }.get(split.order, "")


def _call_evidence(split: Split) -> Evidence:
    few, many = name_ranks(i.rank for i in split.few), name_ranks(i.rank for i in split.many)
    at = f"as {split.at} " if split.at else ""
    text = f"{at}{many} called {clean(split.many_call, 120)}, {few} {clean(split.few_call, 120)}"
    by_records = split.ground is Ground.RECORDS
    return Evidence(
        source="records" if by_records else "peers",
        text=text,
        ranks=ranks_of(split.few),
        weight=(RECORD_WEIGHT if split.certain else UNSURE_WEIGHT) if by_records else WAIT_WEIGHT,
    )


def _off_evidence(split: Split) -> tuple[Evidence, ...]:
    if not split.off:
        return ()
    text = f"{name_ranks(item.rank for item in split.few)}: {split.off}"
    return (Evidence(source="order", text=text, ranks=ranks_of(split.few), weight=OFF_WEIGHT),)


def _loop_evidence(split: Split) -> tuple[Evidence, ...]:
    words = _say_order(split).removeprefix("; it ").removeprefix("; ")
    if not words:
        return ()
    text = f"{name_ranks(item.rank for item in split.few)}: {words}"
    return (Evidence(source="source", text=text, ranks=ranks_of(split.few), weight=LOOP_WEIGHT),)
