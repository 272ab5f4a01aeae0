"""Findings about ranks that cannot run, whatever their code does: stopped, traced, state D."""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.core.diagnosis.evidence_wording import (
    accuse,
    beat_evidence,
    name_rank,
    peers_evidence,
    say_likewise,
    say_others,
    stack_evidence,
    where_of,
)
from watchtower.core.diagnosis.finding import Finding, Tier
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position
from watchtower.core.diagnosis.weighing import weigh
from watchtower.core.phrases import say_duration
from watchtower.core.reading.kernel import HELD
from watchtower.wire.verdict import Cause, Evidence


def is_suspended(picture: Picture) -> bool:
    """Tell whether every live rank is stopped or traced: the job is suspended, nobody's fault."""
    live = picture.live
    return bool(live) and all(item.state in HELD for item in live)


def accuse_held(
    picture: Picture,
    suspects: Sequence[Position],
    *,
    cause: Cause,
    state: str,
    weight: float,
    next_steps: Sequence[str],
    ceiling: float = 1.0,
) -> Finding:
    """Write the finding that these ranks cannot run; `state` completes "rank 3 ..."."""
    evidence: list[Evidence] = []
    for item in suspects[:3]:
        evidence.append(_state_evidence(item, state, weight))
        evidence += beat_evidence(picture, item)
        evidence += _quote_stack(item)
    evidence += peers_evidence(picture, suspects)
    first = suspects[0]
    return Finding(
        cause=cause,
        tier=Tier.CANNOT_ANSWER,
        confidence=weigh(evidence, ceiling=ceiling),
        suspects=tuple(accuse(item, cause, _why(item, state)) for item in suspects),
        summary=(
            f"{name_rank(first)} {_why(first, state)}"
            f"{say_likewise(suspects)}{say_others(picture, suspects)}"
        ),
        evidence=tuple(evidence),
        next_steps=tuple(next_steps),
    )


def _why(position: Position, state: str) -> str:
    where = where_of(position)
    place = f" at {where}" if where else ""
    return f"{state}{place}, no step for {say_duration(position.age_s)}"


def _state_evidence(position: Position, state: str, weight: float) -> Evidence:
    return Evidence(
        source="process",
        text=f"rank {position.rank} {state}",
        ranks=str(position.rank),
        weight=weight,
    )


def _quote_stack(position: Position) -> tuple[Evidence, ...]:
    """Quote the stack without weight: where a held process happens to be proves nothing."""
    return tuple(
        Evidence(source=item.source, text=item.text, ranks=item.ranks, weight=0.0)
        for item in stack_evidence(position)
    )
