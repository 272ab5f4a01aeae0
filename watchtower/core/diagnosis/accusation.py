"""Builds the finding of a rule that compares stacks: the same weighing for every frame class."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from watchtower.core.diagnosis.beside import say_thread, thread_evidence
from watchtower.core.diagnosis.deaths.gave_up import find_gave_up
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
)
from watchtower.core.diagnosis.finding import Finding, Tier
from watchtower.core.diagnosis.scattered import are_scattered
from watchtower.core.diagnosis.standing import Shape, Standing
from watchtower.core.diagnosis.standings import Standings
from watchtower.core.diagnosis.waiting.doubts import find_awaited
from watchtower.core.diagnosis.waiting.wording import wait_evidence
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
    standings: Standings,
    suspects: Sequence[Standing],
    *,
    cause: Cause,
    next_steps: Sequence[str],
    tier: Tier = Tier.STACKS,
    extra: Sequence[Evidence] = (),
    says: Callable[[Standing], str] = lambda _: "",
    ceiling: float = 1.0,
) -> Finding | None:
    """Accuse ranks that are elsewhere while the others wait. Null without suspects.

    `says` adds a clause about the rank, `extra` evidence of the rule's own, `ceiling` its doubt.
    """
    if not suspects:
        return None
    evidence = [*peers_evidence(standings, suspects), *wait_evidence(standings, suspects), *extra]
    for item in suspects[:MAX_QUOTED]:
        evidence += stack_evidence(item)
        evidence += kernel_evidence(item, KERNEL_WEIGHT if item.asleep else 0.0)
        evidence += beat_evidence(standings, item)
        evidence += thread_evidence(standings, item)
    first = suspects[0]
    clauses = {item.rank: f"{says(item)}{say_thread(standings, item)}" for item in suspects}
    return Finding(
        cause=cause,
        tier=min(tier, Tier.WAIT_FOR) if are_awaited(standings, suspects) else tier,
        confidence=weigh(
            evidence,
            contradictions=sum(leads(standings, item) for item in suspects[:1]),
            ceiling=min(ceiling, find_ceiling(standings, suspects)),
        ),
        suspects=tuple(accuse(item, cause, _why(item, clauses[item.rank])) for item in suspects),
        summary=(
            f"{name_rank(first)} {_why(first, clauses[first.rank])}"
            f"{say_likewise(suspects)}{say_others(standings, suspects)}"
        ),
        evidence=tuple(evidence),
        next_steps=tuple(next_steps),
    )


def _why(standing: Standing, clause: str) -> str:
    return f"{say_place(standing)}{say_wait(standing)}{clause}"


def are_awaited(standings: Standings, suspects: Sequence[Standing]) -> bool:
    """Tell whether records show of each of these that others wait for it, and for nobody else."""
    sure = find_awaited(standings.graph)
    return bool(suspects) and all(item.rank in sure for item in suspects)


def leads(standings: Standings, standing: Standing) -> bool:
    """Tell whether a rank is further ahead than the others could be if they waited for it."""
    steps = [item.step for item in standings.waiting_without([standing.rank])]
    known = [step for step in steps if step is not None]
    return standing.step is not None and bool(known) and standing.step > max(known) + MAX_LEAD_STEPS


def find_ceiling(standings: Standings, suspects: Sequence[Standing]) -> float:
    """Limit a confidence by what is not known and by how many are accused."""
    if any(item.rank in standings.doubted for item in suspects):
        return DOUBT_CEILING
    proven = are_awaited(standings, suspects)
    if any(item.came_out for item in suspects) and not proven:
        return DOUBT_CEILING  # who leaves a collective while others are in one gets on
    if not find_gave_up(standings) and _all_go_on(standings, suspects, proven=proven):
        return DOUBT_CEILING
    ceiling = MISSING_CEILING if standings.unknown and not proven else 1.0
    if any(_is_glimpsed(item) for item in suspects):
        ceiling = min(ceiling, GLIMPSE_CEILING)
    waiting = standings.waiting_without(item.rank for item in suspects)
    if not waiting:
        left = find_gave_up(standings)
        return min(ceiling, GAVE_UP_CEILING if left else NOBODY_WAITS_CEILING)
    if standings.comm_threads:
        ceiling = min(ceiling, COMM_CEILING if proven else PRESUMED_CEILING)
    if all(item.presumed for item in waiting):
        ceiling = min(ceiling, SCATTERED_CEILING if are_scattered(waiting) else PRESUMED_CEILING)
    return ceiling


def _is_glimpsed(standing: Standing) -> bool:
    return standing.shape is Shape.UNKNOWN or _went_on(standing)


def _went_on(standing: Standing) -> bool:
    return standing.shape is Shape.CHANGED and not standing.lingers


def _all_go_on(standings: Standings, suspects: Sequence[Standing], *, proven: bool) -> bool:
    """Tell whether nobody is seen to be kept: not one rank that waits has stayed where it was.

    Dumps are not taken at one moment. In a job that is slow every rank is at another place in its
    second dump, and those that happen to be in a collective wait for nobody in particular.
    """
    records, waiting = standings.records, standings.waiting
    moved = any(_went_on(item) for item in suspects)
    advancing = records.advancing if records is not None else frozenset[int]()
    is_kept = standings.graph is not None and bool(standings.graph.ends)
    if (moved or not is_kept) and all(item.rank in advancing for item in standings.live):
        return True
    if proven or any(item.shape is not Shape.CHANGED for item in waiting):
        return False
    return moved or (bool(waiting) and any(item.shape is Shape.CHANGED for item in suspects))


def doubt_crowds(standings: Standings, suspects: Sequence[Standing]) -> float:
    """Ceiling for causes that are rank by rank: many such suspects are more likely the norm.

    If most ranks are "behind" and few wait, the few may be in a call the others never make.
    """
    if are_awaited(standings, suspects):
        return 1.0
    waiting = standings.waiting_without(item.rank for item in suspects) or find_gave_up(standings)
    return DOUBT_CEILING if len(suspects) > len(waiting) or not waiting else 1.0
