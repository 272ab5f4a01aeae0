"""A rank is not inside the collective that the others wait in, and no finer reason is seen.

Also the place for ranks that did not answer while every other one waits, and for those that had
not given up when all others had: any of them may be the one, so they are candidates, never a
confident answer.
"""

from __future__ import annotations

from watchtower.diagnosis import doubts
from watchtower.diagnosis.accusation import MAX_QUOTED, Accusation, Reason, ReasonKind, Tier
from watchtower.diagnosis.elsewhere import accuse_elsewhere, doubt_many
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.reasons import GAVE_UP_WEIGHT, child_reasons, movement_reasons
from watchtower.wire.verdict import Cause


def find(picture: Picture) -> Accusation | None:
    """Accuse every rank that answered from outside, else name those that did not answer."""
    sinks = picture.sinks
    if not sinks:
        return _name_candidates(picture)
    known = len(picture.live) + len(picture.gave_up)
    return accuse_elsewhere(
        picture,
        sinks,
        Cause.BEHIND_COLLECTIVE,
        reasons=[*movement_reasons(sinks), *child_reasons(picture, sinks[:MAX_QUOTED])],
        why_not=[doubts.PAIR if known < 3 else doubts.COARSE, *doubt_many(picture, sinks)],
        advice=(*(("wait_place",) if sinks[0].wait_place else ()), "read_code", "dump_threads"),
    )


def _name_candidates(picture: Picture) -> Accusation | None:
    if picture.first_hand.awaited:
        return _name_awaited(picture)
    silent = picture.unseen
    if not picture.waiting_without(item.rank for item in silent):
        return None
    return accuse_elsewhere(
        picture,
        silent,
        Cause.BEHIND_COLLECTIVE,
        why_not=[doubts.NO_ANSWER],
        advice=("dump_rank",),
    )


def _name_awaited(picture: Picture) -> Accusation:
    """Name the ranks that all others may have waited for until they gave up. No rank is left."""
    found = picture.first_hand
    left, first = tuple(sorted(death.rank for death in found.deaths)), found.deaths[0]
    return Accusation(
        cause=Cause.BEHIND_COLLECTIVE,
        tier=Tier.STACKS,
        suspects=tuple(death.position for death in found.awaited),
        reasons=(Reason(ReasonKind.ENDING, GAVE_UP_WEIGHT, left, first),),
        doubts=(doubts.HAD_NOT_GIVEN_UP,),
        advice=("read_code",),
    )
