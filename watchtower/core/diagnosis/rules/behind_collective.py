"""A rank is not inside the collective that the others wait in, and no finer reason is seen.

Also the place for ranks that did not answer while every other one waits: any of them may be the
one, so they are candidates, never a confident answer.
"""

from __future__ import annotations

from watchtower.core.diagnosis.accusation import accuse_by_stack, doubt_crowds
from watchtower.core.diagnosis.evidence_wording import (
    advise_wait,
    movement_evidence,
    say_place_of_wait,
)
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position
from watchtower.core.diagnosis.weighing import DOUBT_CEILING
from watchtower.core.diagnosis.workers import child_evidence, say_child
from watchtower.core.phrases import clean
from watchtower.wire.verdict import Cause

COARSE_CEILING = 0.8
"""Below a finer reason for the same rank."""

PAIR_CEILING = 0.6
"""Of two ranks either may be in a call that the other never makes."""


def find(picture: Picture) -> Finding | None:
    """Accuse every rank that answered from outside, else name those that did not answer."""
    behind = picture.sinks
    if not behind:
        return _name_candidates(picture)
    known = len(picture.live) + len(picture.gave_up)
    ceiling = PAIR_CEILING if known < 3 else COARSE_CEILING
    return accuse_by_stack(
        picture,
        behind,
        cause=Cause.BEHIND_COLLECTIVE,
        says=lambda item: f"{_say_movement(item)}{say_child(picture, item)}",
        extra=[
            *(movement_evidence(item, 0.0) for item in behind[:3]),
            *child_evidence(picture, behind[:3]),
        ],
        ceiling=min(ceiling, doubt_crowds(picture, behind)),
        next_steps=_advise(behind[0]),
    )


def _name_candidates(picture: Picture) -> Finding | None:
    silent = picture.unseen
    if not picture.waiting_without(item.rank for item in silent):
        return None
    return accuse_by_stack(
        picture,
        silent,
        cause=Cause.BEHIND_COLLECTIVE,
        ceiling=DOUBT_CEILING,
        next_steps=_advise_dump(silent),
    )


def _say_movement(position: Position) -> str:
    return "; it is moving" if position.moving else say_place_of_wait(position)


def _advise(first: Position) -> tuple[str, ...]:
    node = clean(first.evidence.node, 64) or "its node"
    place = clean(first.reading.where) if first.reading else "its stack"
    return (
        *filter(None, (advise_wait(first),)),
        f"read the code around {place}: what does rank {first.rank} wait for or do there?",
        f"`py-spy dump --pid {first.evidence.pid}` on {node} shows every thread",
    )


def _advise_dump(silent: tuple[Position, ...]) -> tuple[str, ...]:
    if not silent:
        return ()
    first = silent[0].evidence
    return (
        f"look at rank {first.rank} on {clean(first.node, 64) or 'its node'}: "
        f"`py-spy dump --pid {first.pid}`",
    )
