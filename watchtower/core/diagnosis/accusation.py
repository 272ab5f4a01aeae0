"""Builds the finding of a rule that compares stacks: the same weighing for every frame class."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from watchtower.core.diagnosis.beside import say_thread, thread_evidence
from watchtower.core.diagnosis.evidence_wording import (
    accuse,
    beat_evidence,
    kernel_evidence,
    name_rank,
    peers_evidence,
    say_likewise,
    say_others,
    say_place,
    say_wait,
    stack_evidence,
    wait_evidence,
)
from watchtower.core.diagnosis.finding import Finding, Tier
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position, Shape
from watchtower.core.diagnosis.waits.majority import are_scattered
from watchtower.core.diagnosis.weighing import DOUBT_CEILING, MISSING_CEILING, weigh
from watchtower.wire.verdict import Cause, Evidence

KERNEL_WEIGHT = 0.4
"""A main thread asleep in a call that fits the stack."""

PRESUMED_CEILING = 0.75
"""Ceiling while the others wait only by inference from where most of them sit."""

SCATTERED_CEILING = 0.6
"""The same, where they sit at several lines of one function: one of these may be a lock."""

NOBODY_WAITS_CEILING = 0.55
"""Ceiling while no rank is seen to wait: a data loader may still be the whole job's trouble."""

GAVE_UP_CEILING = 0.8
"""Ceiling while those that waited have ended: the rank may have gone on only to find them gone."""

COMM_CEILING = 0.85
"""Ceiling while the others wait in threads beside main: that main waits for these is inferred."""

GLIMPSE_CEILING = 0.85
"""Ceiling while no two looks show a suspect at one place: it may have been seen on its way. That
the others wait, their records and their steps say the same of a job that merely is slow."""

MAX_LEAD_STEPS = 1
"""A rank may be one step ahead of those that wait (asynchronous collectives); one further ahead has
left behind the collective they are in, which contradicts that they wait for it."""

MAX_QUOTED = 3
"""Suspects whose evidence is quoted one by one; the others are in the rank sets."""


def accuse_by_stack(
    picture: Picture,
    suspects: Sequence[Position],
    *,
    cause: Cause,
    next_steps: Sequence[str],
    tier: Tier = Tier.STACKS,
    extra: Sequence[Evidence] = (),
    says: Callable[[Position], str] = lambda _: "",
    ceiling: float = 1.0,
) -> Finding | None:
    """Accuse ranks that are elsewhere while the others wait. Null without suspects.

    `says` adds a clause about the rank, `extra` evidence of the rule's own, `ceiling` its doubt.
    """
    if not suspects:
        return None
    evidence = [*peers_evidence(picture, suspects), *wait_evidence(picture, suspects), *extra]
    for item in suspects[:MAX_QUOTED]:
        evidence += stack_evidence(item)
        evidence += kernel_evidence(item, KERNEL_WEIGHT if item.asleep else 0.0)
        evidence += beat_evidence(picture, item)
        evidence += thread_evidence(picture, item)
    first = suspects[0]
    clauses = {item.rank: f"{says(item)}{say_thread(picture, item)}" for item in suspects}
    return Finding(
        cause=cause,
        tier=min(tier, Tier.WAIT_FOR) if are_awaited(picture, suspects) else tier,
        confidence=weigh(
            evidence,
            contradictions=sum(leads(picture, item) for item in suspects[:1]),
            ceiling=min(ceiling, find_ceiling(picture, suspects)),
        ),
        suspects=tuple(accuse(item, cause, _why(item, clauses[item.rank])) for item in suspects),
        summary=(
            f"{name_rank(first)} {_why(first, clauses[first.rank])}"
            f"{say_likewise(suspects)}{say_others(picture, suspects)}"
        ),
        evidence=tuple(evidence),
        next_steps=tuple(next_steps),
    )


def _why(position: Position, clause: str) -> str:
    return f"{say_place(position)}{say_wait(position)}{clause}"


def are_awaited(picture: Picture, suspects: Sequence[Position]) -> bool:
    """Tell whether records show of each of these that others wait for it, and for nobody else."""
    sure = picture.graph.certain_sinks if picture.graph else frozenset[int]()
    return bool(suspects) and all(item.rank in sure for item in suspects)


def leads(picture: Picture, position: Position) -> bool:
    """Tell whether a rank is further ahead than the others could be if they waited for it."""
    steps = [item.step for item in picture.waiting_without([position.rank])]
    known = [step for step in steps if step is not None]
    return position.step is not None and bool(known) and position.step > max(known) + MAX_LEAD_STEPS


def find_ceiling(picture: Picture, suspects: Sequence[Position]) -> float:
    """Limit a confidence by what is not known and by how many are accused."""
    if any(item.rank in picture.uncertain for item in suspects):
        return DOUBT_CEILING
    proven = are_awaited(picture, suspects)
    if any(item.came_out for item in suspects) and not proven:
        return DOUBT_CEILING  # who leaves a collective while others are in one gets on
    if not picture.gave_up and _all_go_on(picture, suspects, proven=proven):
        return DOUBT_CEILING
    ceiling = MISSING_CEILING if picture.unseen and not proven else 1.0
    if any(_is_glimpsed(item) for item in suspects):
        ceiling = min(ceiling, GLIMPSE_CEILING)
    waiting = picture.waiting_without(item.rank for item in suspects)
    if not waiting:
        left = picture.gave_up
        return min(ceiling, GAVE_UP_CEILING if left else NOBODY_WAITS_CEILING)
    if picture.comm_threads:
        ceiling = min(ceiling, COMM_CEILING if proven else PRESUMED_CEILING)
    if all(item.presumed for item in waiting):
        ceiling = min(ceiling, SCATTERED_CEILING if are_scattered(waiting) else PRESUMED_CEILING)
    return ceiling


def _is_glimpsed(position: Position) -> bool:
    return position.shape is Shape.UNKNOWN or _went_on(position)


def _went_on(position: Position) -> bool:
    return position.shape is Shape.CHANGED and not position.lingers


def _all_go_on(picture: Picture, suspects: Sequence[Position], *, proven: bool) -> bool:
    """Tell whether nobody is seen to be kept: not one rank that waits has stayed where it was.

    Dumps are not taken at one moment. In a job that is slow every rank is at another place in its
    second dump, and those that happen to be in a collective wait for nobody in particular.
    """
    records, waiting = picture.records, picture.waiting
    moved = any(_went_on(item) for item in suspects)
    advancing = records.advancing if records is not None else frozenset[int]()
    is_kept = picture.graph is not None and bool(picture.graph.ends)
    if (moved or not is_kept) and all(item.rank in advancing for item in picture.live):
        return True
    if proven or any(item.shape is not Shape.CHANGED for item in waiting):
        return False
    return moved or (bool(waiting) and any(item.shape is Shape.CHANGED for item in suspects))


def doubt_crowds(picture: Picture, suspects: Sequence[Position]) -> float:
    """Ceiling for causes that are rank by rank: many such suspects are more likely the norm.

    If most ranks are "behind" and few wait, the few may be in a call the others never make.
    """
    if are_awaited(picture, suspects):
        return 1.0
    waiting = picture.waiting_without(item.rank for item in suspects) or picture.gave_up
    return DOUBT_CEILING if len(suspects) > len(waiting) or not waiting else 1.0
