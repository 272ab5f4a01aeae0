"""All steps became slower, and one rank hardly ever waits for the others: it sets the pace.

In a synchronous job the fast ranks wait inside the collective for the slow one, so over many looks
the slow rank is the one that waits least. Not so when all work longer: then nobody is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import median

from watchtower.core.diagnosis.evidence_wording import (
    accuse,
    movement_evidence,
    name_rank,
    say_likewise,
    stack_evidence,
    where_of,
)
from watchtower.core.diagnosis.finding import Finding, Tier
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Place, Position
from watchtower.core.diagnosis.weighing import DOUBT_CEILING, weigh
from watchtower.core.phrases import clean, say_slower
from watchtower.core.ranksets import format_ranks
from watchtower.core.reading.frames import FrameClass
from watchtower.wire.verdict import Cause, Evidence

MIN_LOOKS = 4
"""Fewer looks at a rank say nothing about it."""

OTHERS_WAIT = 0.4
"""Share of looks that the others must be found waiting in: twice as long a step makes it half."""

WAITS_LEAST = 0.25
"""A straggler waits in at most this share of the looks that the others wait in."""

MAX_CHANCE = 0.02
"""Chance that some rank of the job waits so little although it is as fast as the others."""

MAX_SHARE = 0.25
"""More ranks than this share (and more than one) that wait little are the rule, not stragglers."""

PAIR_CEILING = 0.7
"""Of two ranks one always waits less."""


def find(picture: Picture) -> Finding | None:
    """Accuse the ranks that wait least, if the others wait much."""
    counted = [item for item in picture.live if item.evidence.looks >= MIN_LOOKS]
    if len(counted) < 2:
        return None
    usual = median(_share(item) for item in counted)
    if len(counted) == 2:
        usual = max(_share(item) for item in counted)
    slow = [item for item in counted if _waits_little(item, usual, len(counted))]
    if usual < OTHERS_WAIT or not slow or len(slow) > max(1, MAX_SHARE * len(counted)):
        return None
    others = [item for item in counted if item not in slow]
    uncounted = len(picture.live) - len(counted)
    evidence = [_count_evidence(slow, others), _pace_evidence(picture)]
    for item in slow[:3]:
        evidence += _quote_work(item)
        evidence.append(movement_evidence(item, 0.0))
    first = slow[0]
    ceiling = PAIR_CEILING if len(counted) == 2 else 1.0
    return Finding(
        cause=Cause.STRAGGLER,
        tier=Tier.PROGRESS,
        confidence=weigh(evidence, ceiling=DOUBT_CEILING if uncounted else ceiling),
        suspects=tuple(accuse(item, Cause.STRAGGLER, _why(item)) for item in slow),
        summary=(
            f"{name_rank(first)} {_why(first)}{say_likewise(slow)}; the others wait for it, and "
            f"{say_slower(picture.case.slowdown, picture.case.typical_step_s)}"
        ),
        evidence=tuple(evidence),
        next_steps=_advise(picture, first),
    )


def _waits_little(position: Position, usual: float, among: int) -> bool:
    evidence = position.evidence
    chance = find_chance(evidence.waits, evidence.looks, usual) * among
    return _share(position) <= WAITS_LEAST * usual and chance <= MAX_CHANCE


def find_chance(waits: int, looks: int, usual: float) -> float:
    """Chance of at most `waits` of `looks` for a rank that waits as the usual one does."""
    return sum(comb(looks, n) * usual**n * (1 - usual) ** (looks - n) for n in range(waits + 1))


def _share(position: Position) -> float:
    return position.evidence.waits / position.evidence.looks


def _why(position: Position) -> str:
    evidence = position.evidence
    return f"was waiting in {evidence.waits} of {evidence.looks} looks"


def _count_evidence(slow: Sequence[Position], others: Sequence[Position]) -> Evidence:
    return Evidence(
        source="stacks",
        text=(
            f"found waiting for other ranks: rank {slow[0].rank} in {_share(slow[0]):.0%} of "
            f"{slow[0].evidence.looks} looks, the others in {_say_range(others)}"
        ),
        ranks=format_ranks(item.rank for item in slow),
        weight=0.75,
    )


def _say_range(others: Sequence[Position]) -> str:
    shares = sorted(map(_share, others))
    least, most = f"{shares[0]:.0%}", f"{shares[-1]:.0%}"
    return least if least == most else f"{least} to {most}"


def _pace_evidence(picture: Picture) -> Evidence:
    text = say_slower(picture.case.slowdown, picture.case.typical_step_s)
    return Evidence(source="heartbeat", text=text, weight=0.3)


def _quote_work(position: Position) -> tuple[Evidence, ...]:
    """Quote the last stack if it shows the rank at work: it had to be somewhere."""
    if position.place is Place.INSIDE:
        return ()
    return tuple(
        Evidence(source=item.source, text=item.text, ranks=item.ranks, weight=0.0)
        for item in stack_evidence(position)
    )


def _advise(picture: Picture, first: Position) -> tuple[str, ...]:
    node = clean(first.evidence.node, 64) or "its node"
    return (
        _say_where_to_look(picture, first, node),
        f"`py-spy top --pid {first.evidence.pid}` on {node} shows where rank {first.rank} spends "
        "its time",
    )


def _say_where_to_look(picture: Picture, first: Position, node: str) -> str:
    """Name what the last stack shows it busy with; only one that computes may have a slow GPU."""
    if first.place is not Place.INSIDE and first.reading is not None:
        at = where_of(first)
        if first.frame_class is FrameClass.DATALOADER:
            return (
                f"look at the storage that rank {first.rank} reads from on {node}: it was at {at}"
            )
        if not first.moving:
            return (
                f"look at what rank {first.rank} waits for at {at} on {node}: "
                "it does not compute there"
            )
    return f"compare {node} with the others: clocks and throttling of its GPU, CPU load, its disk"
