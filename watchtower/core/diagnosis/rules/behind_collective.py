"""A rank is not inside the collective that the others wait in, and no finer reason is seen.

Also the place for ranks that did not answer while every other one waits: any of them may be the
one, so they are candidates, never a confident answer.
"""

from __future__ import annotations

from watchtower.core.case import Case
from watchtower.core.diagnosis.accusation import accuse_by_stack, doubt_crowds
from watchtower.core.diagnosis.deaths.gave_up import find_gave_up
from watchtower.core.diagnosis.evidence_wording import (
    advise_wait,
    movement_evidence,
    say_place_of_wait,
)
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.standing import Standing
from watchtower.core.diagnosis.standings import Standings
from watchtower.core.diagnosis.weighing import DOUBT_CEILING
from watchtower.core.diagnosis.workers import child_evidence, say_child
from watchtower.core.phrases import clean
from watchtower.wire.verdict import Cause

COARSE_CEILING = 0.8
"""Below a finer reason for the same rank."""

PAIR_CEILING = 0.6
"""Of two ranks either may be in a call that the other never makes."""


def find(case: Case, standings: Standings) -> Finding | None:
    """Accuse every rank that answered from outside, else name those that did not answer."""
    behind = standings.behind
    if not behind:
        return _name_candidates(standings)
    known = len(standings.live) + len(find_gave_up(standings))
    ceiling = PAIR_CEILING if known < 3 else COARSE_CEILING
    return accuse_by_stack(
        standings,
        behind,
        cause=Cause.BEHIND_COLLECTIVE,
        says=lambda item: f"{_say_movement(item)}{say_child(standings, item)}",
        extra=[
            *(movement_evidence(item, 0.0) for item in behind[:3]),
            *child_evidence(standings, behind[:3]),
        ],
        ceiling=min(ceiling, doubt_crowds(standings, behind)),
        next_steps=_advise(behind[0]),
    )


def _name_candidates(standings: Standings) -> Finding | None:
    silent = standings.unknown
    if not standings.waiting_without(item.rank for item in silent):
        return None
    return accuse_by_stack(
        standings,
        silent,
        cause=Cause.BEHIND_COLLECTIVE,
        ceiling=DOUBT_CEILING,
        next_steps=_advise_dump(silent),
    )


def _say_movement(standing: Standing) -> str:
    return "; it is moving" if standing.moving else say_place_of_wait(standing)


def _advise(first: Standing) -> tuple[str, ...]:
    node = clean(first.evidence.node, 64) or "its node"
    place = clean(first.reading.where) if first.reading else "its stack"
    return (
        *filter(None, (advise_wait(first),)),
        f"read the code around {place}: what does rank {first.rank} wait for or do there?",
        f"`py-spy dump --pid {first.evidence.pid}` on {node} shows every thread",
    )


def _advise_dump(silent: tuple[Standing, ...]) -> tuple[str, ...]:
    if not silent:
        return ()
    first = silent[0].evidence
    return (
        f"look at rank {first.rank} on {clean(first.node, 64) or 'its node'}: "
        f"`py-spy dump --pid {first.pid}`",
    )
