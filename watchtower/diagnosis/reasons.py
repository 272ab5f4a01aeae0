"""Reasons that many rules give, with their weights: stacks, kernel waits, steps, peers, paths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from watchtower.diagnosis.accusation import MAX_QUOTED, Reason, ReasonKind
from watchtower.diagnosis.bystanders import find_children, find_threads
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position, Shape
from watchtower.diagnosis.subjects import CalledBeside, Children, Path, Ranks, Steps

STACK_WEIGHTS = {Shape.SAME: 0.75, Shape.NEAR: 0.75, Shape.CHANGED: 0.6, Shape.UNKNOWN: 0.6}
"""Two equal stacks show a rank that stays; one stack may have caught it on its way."""

LOG_WEIGHT = 0.85
"""Collective logs count what was entered; only the private state of the library may be wrong."""

CALLED_WEIGHT = 0.5
"""The library logs that a call was made, not that it has begun; or some members have no logs."""

KERNEL_WEIGHT = 0.4
"""A main thread asleep in a call that fits the stack."""

PEERS_WEIGHT, PRESUMED_WEIGHT = 0.55, 0.4
"""All others wait; of fewer the share counts, from a half on."""

GAVE_UP_WEIGHT = 0.5
"""Ranks that waited until their patience ended are witnesses like those that still do."""

LOWER_STEP_WEIGHT, STEP_WEIGHT = 0.4, 0.15
"""A rank that is a step behind those that wait, and one that is not."""

MAX_PATHS = 3
"""Paths given for one accusation: each is a search over all who wait."""


def stack_reason(position: Position, weight: float | None = None) -> Iterator[Reason]:
    """Yield where the rank is, and whether it stayed; nothing without a stack."""
    if position.stack is not None:
        weight = STACK_WEIGHTS[position.shape] if weight is None else weight
        yield Reason(ReasonKind.STACK, weight, (position.rank,), position)


def kernel_reason(position: Position) -> Iterator[Reason]:
    """Yield what the kernel shows that its main thread waits for."""
    if position.wait.text:
        weight = KERNEL_WEIGHT if position.asleep else 0.0
        yield Reason(ReasonKind.KERNEL, weight, (position.rank,), position)


def movement_reason(position: Position, weight: float) -> Reason:
    """Return CPU use and traffic of the rank's process tree."""
    return Reason(ReasonKind.MOVEMENT, weight, (position.rank,), position)


def step_reason(picture: Picture, position: Position) -> Iterator[Reason]:
    """Compare its last step with those of the waiting ranks."""
    steps = [item.step for item in picture.waiting_without([position.rank])]
    known = [step for step in steps if step is not None]
    if position.step is not None and known:
        weight = LOWER_STEP_WEIGHT if position.step < min(known) else STEP_WEIGHT
        yield Reason(
            ReasonKind.STEP, weight, (position.rank,), Steps(position, min(known), max(known))
        )


def peers_reason(picture: Picture, suspects: Sequence[Position]) -> Iterator[Reason]:
    """Yield where the others wait; the more of the live ranks they are, the heavier."""
    waiting = picture.waiting_without(item.rank for item in suspects)
    if waiting:
        share = len(waiting) / max(len(picture.live), 1)
        presumed = all(item.presumed for item in waiting)
        weight = round((PRESUMED_WEIGHT if presumed else PEERS_WEIGHT) * max(share, 0.5), 2)
        yield Reason(ReasonKind.PEERS, weight, ranks_of(waiting), Ranks(tuple(waiting)))
    elif picture.gave_up:
        left = picture.gave_up
        yield Reason(ReasonKind.GAVE_UP, GAVE_UP_WEIGHT, ranks_of(left), Ranks(tuple(left)))


def path_reasons(picture: Picture, suspects: Sequence[Position]) -> Iterator[Reason]:
    """Yield on which paths the others wait for these ranks, where collective logs show some."""
    if picture.graph is None:
        return
    accused, given = {item.rank for item in suspects}, 0
    for end in picture.graph.ends:
        if given == MAX_PATHS:
            break
        if accused.intersection(end.ranks) and (path := picture.graph.path_to(end)):
            weight = LOG_WEIGHT if end.certain else CALLED_WEIGHT
            ranks = {rank for rank, _ in path}.union(end.ranks)
            yield Reason(ReasonKind.PATH, weight, tuple(sorted(ranks)), Path(path, end))
            given += 1
    yield from _called_beside(picture, suspects)


def _called_beside(picture: Picture, suspects: Sequence[Position]) -> Iterator[Reason]:
    """Yield how often the suspects called what is waited for beside main, where no stack shows it.

    A thread that died or never called leaves nothing but its count.
    """
    if picture.comm_threads is None or picture.graph is None or picture.collective_logs is None:
        return
    for item in suspects[:MAX_PATHS]:
        kept = (p for p in picture.graph.points if item.rank in p.missing and p.group)
        point = next(kept, None)
        if point is None or point.group is None:
            continue
        log = picture.collective_logs.log_of(item.rank, point.group.id)
        if log is not None:
            ranks = (*point.waiting, item.rank)
            about = CalledBeside(picture.comm_threads, point, item.rank, log.called)
            yield Reason(ReasonKind.CALLED_BESIDE, LOG_WEIGHT, ranks, about)


def thread_reasons(picture: Picture, position: Position) -> Iterator[Reason]:
    """Yield the threads that it may wait for. They weigh nothing: that a thread stays somewhere
    does not show that it is the one waited for."""
    for found in find_threads(picture, position):
        yield Reason(ReasonKind.THREAD, 0.0, (position.rank,), found)


def child_reasons(picture: Picture, suspects: Iterable[Position]) -> Iterator[Reason]:
    """Yield children that may be waited for; they weigh nothing: many ranks have idle children."""
    for item in suspects:
        if found := find_children(picture, item):
            yield Reason(ReasonKind.CHILD, 0.0, (item.rank,), Children(found))


def movement_reasons(suspects: Sequence[Position], weight: float = 0.0) -> list[Reason]:
    """Return CPU use and traffic of the first of these ranks."""
    return [movement_reason(item, weight) for item in suspects[:MAX_QUOTED]]


def ranks_of(positions: Iterable[Position]) -> tuple[int, ...]:
    """Return the ranks of these."""
    return tuple(item.rank for item in positions)
