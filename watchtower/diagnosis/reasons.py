"""Reasons that several causes give, with their weights and sentences: stacks, kernel waits, steps,
peers, paths, threads, children, movement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from watchtower.diagnosis.accusation import MAX_QUOTED, Reason, of_rank
from watchtower.diagnosis.bystanders import (
    describe_children,
    describe_thread,
    find_children,
    find_threads,
)
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position, Shape
from watchtower.diagnosis.waits.graph import End, PointKind, WaitPoint, describe_group, name_point
from watchtower.diagnosis.words import MAX_WAITS, name_wait, name_waits, write_phase, write_timer
from watchtower.evidence.frames import describe_frames
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean, count_ranks, format_duration, join_words

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

MAX_HOPS = 4
"""Waits shown of one path; of a longer one, the first and the last ones."""

_STAYS = {
    Shape.SAME: "unchanged in two dumps",
    Shape.NEAR: "same user frames in two dumps",
    Shape.CHANGED: "changed since the dump before",
    Shape.UNKNOWN: "only one dump",
}


def ranks_of(positions: Iterable[Position]) -> tuple[int, ...]:
    """Return the ranks of these."""
    return tuple(item.rank for item in positions)


def stack_reason(position: Position, weight: float | None = None) -> Iterator[Reason]:
    """Yield where the rank is, and whether it stayed; nothing without a stack."""
    if position.stack is not None:
        weight = STACK_WEIGHTS[position.shape] if weight is None else weight
        frames = clean(describe_frames(position.stack.frames), 400)
        yield of_rank("stacks", weight, position, f"{frames} ({_STAYS[position.shape]})")


def kernel_reason(position: Position) -> Iterator[Reason]:
    """Yield what the kernel shows that its main thread waits for."""
    if position.wait.text:
        weight = KERNEL_WEIGHT if position.asleep else 0.0
        wait = f"{position.wait.text}{write_timer(position)}"
        yield of_rank("kernel", weight, position, f"state {position.state.value}, {wait}")


def movement_reason(position: Position, weight: float) -> Reason:
    """Return CPU use and traffic of the rank's process tree."""
    movement = position.evidence.movement
    stored = movement.write_bytes_per_s + movement.read_bytes_per_s
    traffic = f"{stored / 1e6:.1f} MB/s of storage traffic" if movement.io_readable else ""
    used = f"{movement.cpu_cores:.2f} cores used"
    sent = f"{movement.socket_bytes_per_s / 1e6:.1f} MB/s over TCP" if position.transfers else ""
    return of_rank("movement", weight, position, ", ".join(filter(None, (used, traffic, sent))))


def movement_reasons(suspects: Sequence[Position], weight: float = 0.0) -> list[Reason]:
    """Return CPU use and traffic of the first of these ranks."""
    return [movement_reason(item, weight) for item in suspects[:MAX_QUOTED]]


def step_reason(picture: Picture, position: Position) -> Iterator[Reason]:
    """Compare its last step with those of the waiting ranks."""
    steps = [item.step for item in picture.waiting_without([position.rank])]
    known = [step for step in steps if step is not None]
    if position.step is None or not known:
        return
    low, high = min(known), max(known)
    weight = LOWER_STEP_WEIGHT if position.step < low else STEP_WEIGHT
    last = f"last step {position.step}, {format_duration(position.age_s)} ago"
    theirs = str(low) if low == high else f"{low} to {high}"
    text = f"{last}{write_phase(position)}; the waiting ranks are at step {theirs}"
    yield of_rank("heartbeat", weight, position, text)


def peers_reason(picture: Picture, suspects: Sequence[Position]) -> Iterator[Reason]:
    """Yield where the others wait; the more of the live ranks they are, the heavier."""
    waiting = picture.waiting_without(item.rank for item in suspects)
    if waiting:
        share = len(waiting) / max(len(picture.live), 1)
        presumed = all(item.presumed for item in waiting)
        weight = round((PRESUMED_WEIGHT if presumed else PEERS_WEIGHT) * max(share, 0.5), 2)
        verb = "waits" if len(waiting) == 1 else "wait"
        how = " (inferred: most ranks are there)" if presumed else ""
        text = f"{count_ranks(len(waiting))} {verb} in {name_waits(waiting)}{how}"
        yield Reason("peers", weight, ranks_of(waiting), text)
    elif left := picture.gave_up:
        waited = f"{count_ranks(len(left))} waited in {name_wait(left)}"
        text = f"{waited} during this stall, then gave up"
        yield Reason("peers", GAVE_UP_WEIGHT, ranks_of(left), text)


def same_call_reason(picture: Picture, weight: float) -> Reason:
    """Return where all live ranks wait."""
    live, places = picture.live, _sort_by_place(picture.live)
    stays = ", unchanged in two dumps" if all(item.unchanged for item in live) else ""
    each = [f"{name_ranks(i.rank for i in items)} in {place}" for place, items in places.items()]
    text = f"the ranks wait: {join_words(each)}{stays}"
    if len(places) == 1:
        text = f"all {count_ranks(len(live))} wait in {next(iter(places))}{stays}"
    return Reason("stacks", weight, ranks_of(live), text)


def _sort_by_place(live: Sequence[Position]) -> dict[str, list[Position]]:
    """Sort by call and line, where most are first; all after the last place shown are one."""
    by_place: dict[str, list[Position]] = defaultdict(list)
    for item in live:
        at = f" at {clean(item.reading.what_at)}" if item.reading else ""
        by_place[f"{name_wait([item])}{at}"].append(item)
    places = sorted(by_place.items(), key=lambda each: (-len(each[1]), each[1][0].rank))
    shown, rest = places[:MAX_WAITS], [item for _, items in places[MAX_WAITS:] for item in items]
    return dict(shown) | ({"other calls": rest} if rest else {})


EXPLAINED_WEIGHT = 0.5
"""Of an observation that says why a rank does not go on: another rank may work there, too."""


def observed_reasons(picture: Picture, position: Position) -> Iterator[Reason]:
    """Yield what collectors observed that says why a rank does not go on."""
    for each in picture.explained(position.rank):
        text = f"rank {position.rank}: {each.write(position)}"
        yield Reason("node", EXPLAINED_WEIGHT, (position.rank,), text)


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
            yield Reason("records", weight, tuple(sorted(ranks)), _write_path(path, end))
            given += 1
    yield from _called_beside(picture, suspects)


def _write_path(path: Sequence[tuple[int, WaitPoint]], end: End) -> str:
    """Return "rank 0 waits in ... for rank 2; rank 2 waits in ... for rank 3; ..."."""
    shown = [*path[:1], *path[-MAX_HOPS + 1 :]] if len(path) > MAX_HOPS else list(path)
    parts = []
    for index, (rank, point) in enumerate(shown):
        whom = shown[index + 1][0] if index + 1 < len(shown) else end.ranks[0]
        skipped = " (and for ranks between)" if len(path) > MAX_HOPS and index == 0 else ""
        parts.append(f"rank {rank} waits in {name_point(point)} for rank {whom}{skipped}")
    return "; ".join([*parts, _write_absence(shown[-1][1], end.ranks[0])])


def _write_absence(point: WaitPoint, rank: int) -> str:
    if rank not in point.missing:
        return f"it is not known whether rank {rank} has come to that call"
    if point.kind is PointKind.RECEIVE:
        return f"rank {rank} has not sent it"
    verb = "entered" if point.kind is PointKind.COLLECTIVE else "received"
    return f"rank {rank} has not {verb} it"


def _called_beside(picture: Picture, suspects: Sequence[Position]) -> Iterator[Reason]:
    """Yield how often the suspects called what is waited for beside main, where no stack shows it.

    A thread that died or never called leaves nothing but its count.
    """
    if picture.comm_threads is None or picture.graph is None or picture.collective_logs is None:
        return
    tasks = sorted(picture.comm_threads.tasks)
    threads = ", ".join(f"`{clean(name, 60)}`" for name, _ in tasks)
    for item in suspects[:MAX_PATHS]:
        kept = (p for p in picture.graph.points if item.rank in p.missing and p.group)
        point = next(kept, None)
        if point is None or point.group is None:
            continue
        log = picture.collective_logs.log_of(item.rank, point.group.id)
        if log is not None:
            text = (
                f"the collectives of {describe_group(point.group)} run in {threads}: "
                f"{name_ranks(point.waiting)} made call number {point.number}; "
                f"the last call of rank {item.rank} is number {log.called}"
            )
            yield Reason("records", LOG_WEIGHT, (*point.waiting, item.rank), text)


def thread_reasons(picture: Picture, position: Position) -> Iterator[Reason]:
    """Yield the threads that it may wait for. They weigh nothing: that a thread stays somewhere
    does not show that it is the one waited for."""
    for found in find_threads(picture, position):
        yield of_rank("threads", 0.0, position, describe_thread(found))


def child_reasons(picture: Picture, suspects: Iterable[Position]) -> Iterator[Reason]:
    """Yield children that may be waited for; they weigh nothing: many ranks have idle children."""
    for item in suspects:
        if found := find_children(picture, item):
            yield of_rank("children", 0.0, item, describe_children(found))
