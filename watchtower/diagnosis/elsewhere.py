"""Accuses ranks that are elsewhere while the others wait: the same reasons and doubts for all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from watchtower.diagnosis import doubts
from watchtower.diagnosis.accusation import MAX_QUOTED, Accusation, Reason, Tier
from watchtower.diagnosis.doubts import Doubt
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position, Shape
from watchtower.diagnosis.reasons import (
    kernel_reason,
    path_reasons,
    peers_reason,
    stack_reason,
    step_reason,
    thread_reasons,
)
from watchtower.diagnosis.subjects import AccusationSubject
from watchtower.diagnosis.waits.majority import are_scattered
from watchtower.wire.report import ProcessState
from watchtower.wire.verdict import Cause

MAX_LEAD_STEPS = 1
"""A rank may be one step ahead of those that wait (asynchronous collectives); one further ahead has
left behind the collective they are in, which contradicts that they wait for it."""


def accuse_elsewhere(
    picture: Picture,
    suspects: Sequence[Position],
    cause: Cause,
    *,
    advice: Sequence[str],
    tier: Tier = Tier.STACKS,
    reasons: Iterable[Reason] = (),
    why_not: Iterable[Doubt] = (),
    about: AccusationSubject = None,
) -> Accusation | None:
    """Return the accusation of ranks that are elsewhere while the others wait. Null without any.

    `reasons` and `why_not` are those of the rule's own.
    """
    if not suspects:
        return None
    given = [*peers_reason(picture, suspects), *path_reasons(picture, suspects), *reasons]
    for item in suspects[:MAX_QUOTED]:
        given += stack_reason(item)
        given += kernel_reason(item)
        given += step_reason(picture, item)
        given += thread_reasons(picture, item)
    return Accusation(
        cause=cause,
        tier=min(tier, Tier.WAIT_FOR) if are_awaited(picture, suspects) else tier,
        suspects=tuple(suspects),
        reasons=tuple(given),
        doubts=(*find_doubts(picture, suspects), *_leading(picture, suspects[0]), *why_not),
        advice=tuple(advice),
        about=about,
    )


def are_awaited(picture: Picture, suspects: Sequence[Position]) -> bool:
    """Return whether collective logs show of each that others wait for it, and for no other."""
    sure = picture.graph.certain_sinks if picture.graph else frozenset[int]()
    return bool(suspects) and all(item.rank in sure for item in suspects)


def doubt_many(picture: Picture, suspects: Sequence[Position]) -> tuple[Doubt, ...]:
    """Doubt causes that are rank by rank where many are suspect: they are more likely the norm.

    If most ranks are elsewhere and few wait, the few may be in a call that the others never make.
    """
    if are_awaited(picture, suspects):
        return ()
    waiting = picture.waiting_without(item.rank for item in suspects) or picture.gave_up
    is_norm = len(suspects) > len(waiting) or not waiting
    return (doubts.MANY_ELSEWHERE,) if is_norm else ()


def find_doubts(picture: Picture, suspects: Sequence[Position]) -> tuple[Doubt, ...]:
    """Return what limits an accusation: what is not known, and how many are accused."""
    proven = are_awaited(picture, suspects)
    if main := _doubt_that_awaited(picture, suspects, proven=proven):
        return (main,)
    found = [doubts.STACK_MISSING] if picture.unseen and not proven else []
    if any(_may_be_moving(item) for item in suspects):
        found.append(doubts.MAY_BE_MOVING)
    waiting = picture.waiting_without(item.rank for item in suspects)
    if not waiting:
        return (*found, doubts.GAVE_UP if picture.gave_up else doubts.NO_RANK_WAITS)
    if picture.comm_threads:
        found.append(doubts.BY_THREADS if proven else doubts.PRESUMED)
    if all(item.presumed for item in waiting):
        found.append(doubts.SCATTERED if are_scattered(waiting) else doubts.PRESUMED)
    return tuple(dict.fromkeys(found))


def _doubt_that_awaited(
    picture: Picture, suspects: Sequence[Position], *, proven: bool
) -> Doubt | None:
    """Return the doubt that the others wait for these at all."""
    if any(item.rank in picture.uncertain for item in suspects):
        return doubts.MAY_NOT_BE_AWAITED
    if picture.uses_devices and any(_may_poll(item) for item in suspects):
        return doubts.MAY_POLL
    if any(item.came_out for item in suspects) and not proven:
        return doubts.CAME_OUT  # a rank that leaves a collective while others are in one gets on
    if not picture.gave_up and _all_go_on(picture, suspects, proven=proven):
        return doubts.ALL_GO_ON
    return None


def _leading(picture: Picture, first: Position) -> tuple[Doubt, ...]:
    """Doubt a rank that is further ahead than the others could be if they waited for it."""
    steps = [item.step for item in picture.waiting_without([first.rank])]
    known = [step for step in steps if step is not None]
    leads = first.step is not None and known and first.step > max(known) + MAX_LEAD_STEPS
    return (doubts.LEADS,) if leads else ()


def _may_poll(position: Position) -> bool:
    """Return whether a rank may poll for its device: its line hides any call, and what it runs is
    not known. A thread with the GIL runs Python."""
    dumps = position.evidence.dumps
    return (
        position.frame_class.traits.hides_any_call
        and all(dump.native is None for dump in dumps)
        and (position.active or position.state is ProcessState.RUNNING)
        and not any(thread.owns_gil for dump in dumps for thread in dump.threads)
    )


def _may_be_moving(position: Position) -> bool:
    return position.shape is Shape.UNKNOWN or _went_on(position)


def _went_on(position: Position) -> bool:
    return position.shape is Shape.CHANGED and not position.lingers


def _all_go_on(picture: Picture, suspects: Sequence[Position], *, proven: bool) -> bool:
    """Return whether no rank is seen to be held up: not one that waits has stayed where it was.

    Dumps are not taken at one moment. In a job that is slow every rank is at another place in its
    second dump, and those that happen to be in a collective wait for no rank in particular.
    """
    logs, waiting = picture.collective_logs, picture.waiting
    moved = any(_went_on(item) for item in suspects)
    advancing = logs.advancing if logs is not None else frozenset[int]()
    is_kept = picture.graph is not None and bool(picture.graph.ends)
    if (moved or not is_kept) and all(item.rank in advancing for item in picture.live):
        return True
    if proven or any(item.shape is not Shape.CHANGED for item in waiting):
        return False
    return moved or (bool(waiting) and any(item.shape is Shape.CHANGED for item in suspects))
