"""Accuses ranks that are elsewhere while the others wait: the same reasons and doubts for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from watchtower.diagnosis.accusation import (
    CANDIDATE,
    MAX_QUOTED,
    STACK_MISSING,
    Accusation,
    Doubt,
    Reason,
    Tier,
)
from watchtower.diagnosis.bystanders import write_thread
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position, Shape
from watchtower.diagnosis.reasons import (
    kernel_reason,
    observed_reasons,
    path_reasons,
    peers_reason,
    stack_reason,
    step_reason,
    thread_reasons,
)
from watchtower.diagnosis.waits.majority import are_scattered
from watchtower.diagnosis.words import write_place, write_wait
from watchtower.wire.report import ProcessState
from watchtower.wire.verdict import Cause
from watchtower.writing.text import join_sentences

MAX_LEAD_STEPS = 1
"""A rank may be one step ahead of those that wait (asynchronous collectives); one further ahead has
left behind the collective they are in, which contradicts that they wait for it."""

LEADS = Doubt(
    "leads", 1.0, "{suspects} completed at least two steps more than the waiting ranks", halves=True
)
MAY_NOT_BE_AWAITED = Doubt(
    "may_not_be_awaited",
    CANDIDATE,
    "{suspects} may be waiting for another rank, or may still make progress",
)
MAY_POLL = Doubt(
    "may_poll",
    CANDIDATE,
    "{suspects} may wait for its GPU like the others: its native place is not known",
)
CAME_OUT = Doubt(
    "came_out", CANDIDATE, "{suspects} just left a collective that other ranks are still in"
)
ALL_GO_ON = Doubt(
    "all_go_on", CANDIDATE, "the stacks changed between two samples, so possibly no rank is blocked"
)
MAY_BE_MOVING = Doubt(
    "may_be_moving", 0.85, "{suspects} may still make progress: no two samples show the same stack"
)
GAVE_UP = Doubt(
    "gave_up",
    0.8,
    "the ranks that waited have ended, and {suspects} may have come to this place only afterwards",
)
NO_RANK_WAITS = Doubt(
    "no_rank_waits", 0.55, "no stack and no collective log shows a rank that waits for {suspects}"
)
BY_THREADS = Doubt(
    "by_threads",
    0.85,
    "the collectives run in other threads, so that main threads wait is inferred",
)
PRESUMED = Doubt(
    "presumed", 0.75, "no collective log shows that the other ranks wait for {suspects}"
)
SCATTERED = Doubt(
    "scattered",
    0.6,
    "the other ranks are at several lines of one function, and one line may be a lock",
)
MANY_ELSEWHERE = Doubt(
    "many_elsewhere", CANDIDATE, "more ranks are suspected than wait, so this may be normal work"
)


def accuse_elsewhere(
    picture: Picture,
    suspects: Sequence[Position],
    cause: Cause,
    *,
    advice: Sequence[str],
    tier: Tier = Tier.STACKS,
    reasons: Iterable[Reason] = (),
    why_not: Iterable[Doubt] = (),
    besides: Callable[[Position], str] | None = None,
) -> Accusation | None:
    """Return the accusation of ranks that are elsewhere while the others wait. Null without any.

    `reasons` and `why_not` are those of the cause's own. `besides` returns a clause about a
    suspect, beside its place and what it waits for.
    """
    if not suspects:
        return None
    given = [*peers_reason(picture, suspects), *path_reasons(picture, suspects), *reasons]
    for item in suspects[:MAX_QUOTED]:
        given += stack_reason(item)
        given += kernel_reason(item)
        given += step_reason(picture, item)
        given += thread_reasons(picture, item)
        given += observed_reasons(picture, item)

    explained = [each for item in suspects for each in picture.explained(item.rank)]

    def why(position: Position) -> str:
        return join_sentences(
            f"{write_place(position)}{write_wait(position)}",
            besides(position) if besides else "",
            *(each.write(position) for each in picture.explained(position.rank)),
            write_thread(picture, position),
        )

    return Accusation(
        cause=cause,
        tier=min(tier, Tier.WAIT_FOR) if are_awaited(picture, suspects) else tier,
        suspects=tuple(suspects),
        reasons=tuple(given),
        doubts=(*find_doubts(picture, suspects), *_leading(picture, suspects[0]), *why_not),
        why=why,
        advice=tuple(dict.fromkeys((*(each.advice for each in explained), *advice))),
        quoted=tuple(each.seen for each in explained),
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
    return (MANY_ELSEWHERE,) if is_norm else ()


def find_doubts(picture: Picture, suspects: Sequence[Position]) -> tuple[Doubt, ...]:
    """Return what limits an accusation: what is not known, and how many are accused."""
    proven = are_awaited(picture, suspects)
    if main := _doubt_that_awaited(picture, suspects, proven=proven):
        return (main,)
    found = [STACK_MISSING] if picture.unseen and not proven else []
    if any(_may_be_moving(item) for item in suspects):
        found.append(MAY_BE_MOVING)
    waiting = picture.waiting_without(item.rank for item in suspects)
    if not waiting:
        return (*found, GAVE_UP if picture.gave_up else NO_RANK_WAITS)
    if picture.comm_threads:
        found.append(BY_THREADS if proven else PRESUMED)
    if all(item.presumed for item in waiting):
        found.append(SCATTERED if are_scattered(waiting) else PRESUMED)
    return tuple(dict.fromkeys(found))


def _doubt_that_awaited(
    picture: Picture, suspects: Sequence[Position], *, proven: bool
) -> Doubt | None:
    """Return the doubt that the others wait for these at all."""
    if any(item.rank in picture.uncertain for item in suspects):
        return MAY_NOT_BE_AWAITED
    if picture.uses_devices and any(_may_poll(item) for item in suspects):
        return MAY_POLL
    if any(item.came_out for item in suspects) and not proven:
        return CAME_OUT  # a rank that leaves a collective while others are in one gets on
    if not picture.gave_up and _all_go_on(picture, suspects, proven=proven):
        return ALL_GO_ON
    return None


def _leading(picture: Picture, first: Position) -> tuple[Doubt, ...]:
    """Doubt a rank that is further ahead than the others could be if they waited for it."""
    steps = [item.step for item in picture.waiting_without([first.rank])]
    known = [step for step in steps if step is not None]
    leads = first.step is not None and known and first.step > max(known) + MAX_LEAD_STEPS
    return (LEADS,) if leads else ()


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
