"""A rank keeps the others waiting in process group set-up.

Either it is somewhere else while the others are in rendezvous, store or init_process_group; or it
is still there while most of the others are further.
"""

from __future__ import annotations

from watchtower.core.case import Case
from watchtower.core.diagnosis.accusation import accuse_by_stack, are_awaited
from watchtower.core.diagnosis.finding import Finding, Tier
from watchtower.core.diagnosis.standing import Place, Standing
from watchtower.core.diagnosis.standings import Standings
from watchtower.core.diagnosis.weighing import DOUBT_CEILING
from watchtower.core.phrases import clean
from watchtower.core.reading.frames import FrameClass
from watchtower.wire.verdict import Cause, Evidence

LATECOMER_CEILING = 0.7
"""Still in set-up while others are further: it may be creating a group they do not need."""


def find(case: Case, standings: Standings) -> Finding | None:
    """Accuse the ranks that are not in set-up while the others are, or the reverse."""
    in_init = [item for item in standings.waiting if item.frame_class is FrameClass.INIT]
    if not in_init:
        return None
    if len(in_init) == len(standings.waiting):
        return _accuse_absent(standings, in_init)
    return _accuse_latecomers(standings, in_init)


def _accuse_absent(standings: Standings, in_init: list[Standing]) -> Finding | None:
    absent = standings.at(Place.BEHIND)
    evidence = Evidence(
        source="startup",
        text="no rank has passed set-up yet",
        weight=0.5 if all(item.step is None for item in standings.by_rank.values()) else 0.0,
    )
    return accuse_by_stack(
        standings,
        absent,
        cause=Cause.INIT_STUCK,
        tier=Tier.NEVER_CAME,
        extra=(evidence,),
        next_steps=_advise(absent),
        ceiling=DOUBT_CEILING if len(absent) > len(in_init) else 1.0,
    )


def _accuse_latecomers(standings: Standings, in_init: list[Standing]) -> Finding | None:
    if _are_kept(standings, in_init):
        return None
    further = len(standings.waiting) - len(in_init)
    return accuse_by_stack(
        standings,
        in_init,
        cause=Cause.INIT_STUCK,
        tier=Tier.NEVER_CAME,
        next_steps=_advise_group(in_init[0]) if _has_stepped(standings) else _advise(in_init),
        ceiling=LATECOMER_CEILING if further > len(in_init) else DOUBT_CEILING,
    )


def _are_kept(standings: Standings, in_init: list[Standing]) -> bool:
    """Tell whether they may wait themselves: for a member of a new group that has not come.

    Set-up is no collective that records show, so only who is elsewhere, or gone, is known.
    """
    if are_awaited(standings, in_init) and not standings.behind:
        return False
    return bool(standings.at(Place.BEHIND, Place.HELD, Place.GONE, Place.MISSING))


def _has_stepped(standings: Standings) -> bool:
    return any(item.step is not None for item in standings.waiting)


def _advise_group(first: Standing) -> tuple[str, ...]:
    """Advise on set-up in the middle of a job: it makes a group of its own there."""
    place = clean(first.reading.where) if first.reading else "its stack"
    return (
        f"read the code around {place}: every rank of the job has to create a process group, in "
        f"the same order, also those outside it; only rank {first.rank} is there",
        "create groups once, before the loop",
    )


def _advise(suspects: tuple[Standing, ...] | list[Standing]) -> tuple[str, ...]:
    if not suspects:
        return ()
    node = clean(suspects[0].evidence.node, 64) or "its node"
    return (
        f"look at what rank {suspects[0].rank} does before it joins: imports, downloads, data set "
        f"preparation on {node}",
        "check that MASTER_ADDR, MASTER_PORT and the interface are the same for every rank",
    )
