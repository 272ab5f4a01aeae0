"""A rank keeps the others waiting in process group set-up.

Either it is somewhere else while the others are in rendezvous, store or init_process_group; or it
is still there while most of the others are further.
"""

from __future__ import annotations

from watchtower.core.diagnosis.accusation import accuse_by_stack, are_awaited
from watchtower.core.diagnosis.finding import Finding, Tier
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Place, Position
from watchtower.core.diagnosis.weighing import DOUBT_CEILING
from watchtower.core.phrases import clean
from watchtower.core.reading.frames import FrameClass
from watchtower.wire.verdict import Cause, Evidence

LATECOMER_CEILING = 0.7
"""Still in set-up while others are further: it may be creating a group they do not need."""


def find(picture: Picture) -> Finding | None:
    """Accuse the ranks that are not in set-up while the others are, or the reverse."""
    in_init = [item for item in picture.waiting if item.frame_class is FrameClass.INIT]
    if not in_init:
        return None
    if len(in_init) == len(picture.waiting):
        return _accuse_absent(picture, in_init)
    return _accuse_latecomers(picture, in_init)


def _accuse_absent(picture: Picture, in_init: list[Position]) -> Finding | None:
    absent = picture.at(Place.ELSEWHERE)
    evidence = Evidence(
        source="startup",
        text="no rank has passed set-up yet",
        weight=0.5 if all(item.step is None for item in picture.by_rank.values()) else 0.0,
    )
    return accuse_by_stack(
        picture,
        absent,
        cause=Cause.INIT_STUCK,
        tier=Tier.NEVER_CAME,
        extra=(evidence,),
        next_steps=_advise(absent),
        ceiling=DOUBT_CEILING if len(absent) > len(in_init) else 1.0,
    )


def _accuse_latecomers(picture: Picture, in_init: list[Position]) -> Finding | None:
    if _are_kept(picture, in_init):
        return None
    further = len(picture.waiting) - len(in_init)
    return accuse_by_stack(
        picture,
        in_init,
        cause=Cause.INIT_STUCK,
        tier=Tier.NEVER_CAME,
        next_steps=_advise_group(in_init[0]) if _has_stepped(picture) else _advise(in_init),
        ceiling=LATECOMER_CEILING if further > len(in_init) else DOUBT_CEILING,
    )


def _are_kept(picture: Picture, in_init: list[Position]) -> bool:
    """Tell whether they may wait themselves: for a member of a new group that has not come.

    Set-up is no collective that records show, so only who is elsewhere, or gone, is known.
    """
    if are_awaited(picture, in_init) and not picture.sinks:
        return False
    return bool(picture.at(Place.ELSEWHERE, Place.CANNOT_RUN, Place.ABSENT))


def _has_stepped(picture: Picture) -> bool:
    return any(item.step is not None for item in picture.waiting)


def _advise_group(first: Position) -> tuple[str, ...]:
    """Advise on set-up in the middle of a job: it makes a group of its own there."""
    place = clean(first.reading.where) if first.reading else "its stack"
    return (
        f"read the code around {place}: every rank of the job has to create a process group, in "
        f"the same order, also those outside it; only rank {first.rank} is there",
        "create groups once, before the loop",
    )


def _advise(suspects: tuple[Position, ...] | list[Position]) -> tuple[str, ...]:
    if not suspects:
        return ()
    node = clean(suspects[0].evidence.node, 64) or "its node"
    return (
        f"look at what rank {suspects[0].rank} does before it joins: imports, downloads, data set "
        f"preparation on {node}",
        "check that MASTER_ADDR, MASTER_PORT and the interface are the same for every rank",
    )
