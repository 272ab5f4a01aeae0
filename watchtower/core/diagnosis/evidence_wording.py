"""Writes what was seen of ranks as evidence and as the clauses of a summary; decides nothing.

The tone: which rank, on which node, in which call at which line, for how long, blocked on what, and
what the others do. No adjectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position, Shape
from watchtower.core.diagnosis.waits.graph import End
from watchtower.core.diagnosis.waits.points import PointKind, WaitPoint
from watchtower.core.diagnosis.waits.wording import (
    RECORD_WEIGHT,
    UNSURE_WEIGHT,
    describe_group,
    name_point,
)
from watchtower.core.phrases import capitalise, clean, join_words, say_duration
from watchtower.core.ranksets import count_ranks, format_ranks, name_ranks
from watchtower.core.reading.frames import WAITING_CLASSES, FrameClass, StackReading
from watchtower.core.reading.stacktree import describe_frames
from watchtower.core.reading.wait_places import WaitPlace, find_wait_place
from watchtower.wire.verdict import Cause, Evidence, Suspect

STACK_WEIGHTS = {Shape.SAME: 0.75, Shape.NEAR: 0.75, Shape.CHANGED: 0.6, Shape.UNKNOWN: 0.6}
"""Two equal stacks show a rank that stays; one stack may have caught it on its way."""

BARE_NAMES = frozenset({"wait", "poll", "join", "synchronize"})
"""Calls whose name says nothing without the line that makes them."""

MAX_WAITS = 3
"""Calls named where not all wait in one; a call and the next are two."""

GAVE_UP_WEIGHT = 0.5
"""Ranks that waited until their patience ended are witnesses like those that still do."""

MAX_HOPS = 4
"""Waits told of one path; a longer one is told from its far end."""

MAX_TOLD = 3
"""Paths told of one finding."""

NAMES_OF_HIDDEN_WAITS = {
    FrameClass.BACKWARD: "backward",
    FrameClass.DEVICE: "a wait for the device",
}


def name_rank(position: Position) -> str:
    """Say "rank 37 (gpu-042, pid 4711)"."""
    evidence = position.evidence
    pid = "" if evidence.pid is None else f"pid {evidence.pid}"
    inside = ", ".join(filter(None, (clean(evidence.node, 64), pid)))
    return f"rank {evidence.rank} ({inside})" if inside else f"rank {evidence.rank}"


def ranks_of(positions: Sequence[Position]) -> str:
    """Write the rank set of these."""
    return format_ranks(item.rank for item in positions)


def accuse(position: Position, cause: Cause, why: str) -> Suspect:
    """Make a suspect of a rank."""
    return Suspect(
        rank=position.rank,
        node=clean(position.evidence.node, 64),
        cause=cause,
        why=capitalise(why),
        pid=position.evidence.pid,
        where=where_of(position),
    )


def where_of(position: Position) -> str | None:
    """Give "data.py:88 in __next__", null without a stack."""
    return None if position.reading is None else clean(position.reading.where)


def say_place(position: Position) -> str:
    """Say "has been in `__next__` at data.py:88 for 9 s"."""
    duration = say_duration(position.age_s)
    if position.reading is None:
        return f"has made no step for {duration}"
    function, at = clean(position.reading.function, 80), clean(position.reading.at, 80)
    return f"has been in `{function}` at {at} for {duration}"


def say_wait(position: Position) -> str:
    """Say ", blocked in read() on /mnt/shards/0042.tar", or nothing when it is not known."""
    if not position.asleep or not position.wait.says:
        return ""
    return f", {position.wait.says}"


def say_others(picture: Picture, suspects: Sequence[Position]) -> str:
    """Say what the other ranks do: "; 511 ranks wait for it in all_reduce", or nothing."""
    waiting = picture.waiting_without(item.rank for item in suspects)
    if waiting:
        return f"; {say_waiting(waiting, suspects)} in {name_wait(waiting)}"
    left = picture.gave_up
    words = f"waited for {_name_awaited(suspects)} in {name_wait(left)} and gave up"
    return f"; {count_ranks(len(left))} {words}" if left else ""


def say_waiting(waiting: Sequence[Position], suspects: Sequence[Position]) -> str:
    """Say "511 ranks wait for it": of the suspects, or for other ranks without any; "" if none."""
    if not waiting:
        return ""
    verb = "waits" if len(waiting) == 1 else "wait"
    if all(item.presumed for item in waiting):
        verb = "seems to wait" if len(waiting) == 1 else "seem to wait"
    return f"{count_ranks(len(waiting))} {verb} for {_name_awaited(suspects)}"


def _name_awaited(suspects: Sequence[Position]) -> str:
    if not suspects:
        return "other ranks"
    return "it" if len(suspects) == 1 else "them"


def name_wait(waiting: Sequence[Position]) -> str:
    """Name the call most of these wait in; records show waits of ranks that gave no stack, too."""
    by_call = _by_call(waiting)
    return max(by_call, key=lambda name: len(by_call[name]), default="a collective")


def name_waits(waiting: Sequence[Position]) -> str:
    """Name the call these wait in; where there are several, each with its ranks."""
    by_call = _by_call(waiting)
    if len(by_call) < 2:
        return name_wait(waiting)
    calls = sorted(by_call.items(), key=lambda found: (-len(found[1]), found[1][0].rank))
    told = [f"{call} ({name_ranks(i.rank for i in items)})" for call, items in calls[:MAX_WAITS]]
    return join_words([*told, *(["other calls"] if len(calls) > MAX_WAITS else [])])


def _by_call(waiting: Sequence[Position]) -> dict[str, list[Position]]:
    by_call: dict[str, list[Position]] = {}
    names: dict[tuple[StackReading, bool], str] = {}
    for item in waiting:
        if item.reading is None:
            continue
        key = item.reading, item.presumed
        name = names.get(key) or names.setdefault(key, _name_call(*key))
        by_call.setdefault(name, []).append(item)
    return by_call


def _name_call(reading: StackReading, presumed: bool) -> str:
    if presumed:
        return f"`{clean(reading.function, 80)}` at {clean(reading.at, 80)}"
    if reading.frame_class not in WAITING_CLASSES:
        # Only records show that it waits: the line that it is at names something else.
        return NAMES_OF_HIDDEN_WAITS.get(reading.frame_class, "a collective")
    called = clean(reading.what, 80)
    return f"{called}() at {clean(reading.at, 80)}" if called in BARE_NAMES else called


def bad_loss_evidence(picture: Picture) -> tuple[Evidence, ...]:
    """Tell of ranks whose loss became NaN or infinite; it explains no wait and weighs nothing."""
    bad = [item for item in picture.by_rank.values() if item.has_bad_loss]
    if not bad:
        return ()
    text = f"{name_ranks(item.rank for item in bad)} reported a NaN or infinite loss"
    return (Evidence(source="heartbeat", text=text, ranks=ranks_of(bad), weight=0.0),)


def say_likewise(suspects: Sequence[Position]) -> str:
    """Say "; likewise ranks 4-6" of the suspects after the first."""
    rest = suspects[1:]
    return f"; likewise {name_ranks(item.rank for item in rest)}" if rest else ""


def stack_evidence(position: Position) -> tuple[Evidence, ...]:
    """Quote the rank's stack and tell whether it stayed."""
    if position.stack is None:
        return ()
    stays = {
        Shape.SAME: "the same in two dumps",
        Shape.NEAR: "the same user frames in two dumps",
        Shape.CHANGED: "another stack than in the dump before",
        Shape.UNKNOWN: "one dump",
    }[position.shape]
    text = f"rank {position.rank}: {clean(describe_frames(position.stack.frames), 400)} ({stays})"
    weight = STACK_WEIGHTS[position.shape]
    return (Evidence(source="stacks", text=text, ranks=str(position.rank), weight=weight),)


def kernel_evidence(position: Position, weight: float) -> tuple[Evidence, ...]:
    """Quote what the kernel says its main thread waits for."""
    if not position.wait.says:
        return ()
    text = f"rank {position.rank}: state {position.state.value}, {position.wait.says}"
    return (Evidence(source="kernel", text=text, ranks=str(position.rank), weight=weight),)


def movement_evidence(position: Position, weight: float) -> Evidence:
    """Quote CPU use and storage traffic of the rank's process tree."""
    movement = position.evidence.movement
    written = movement.write_bytes_per_s + movement.read_bytes_per_s
    traffic = f"{written / 1e6:.1f} MB/s of storage traffic" if movement.io_readable else ""
    used = f"{movement.cpu_cores:.2f} cores used"
    sent = f"{movement.socket_bytes_per_s / 1e6:.1f} MB/s over TCP" if position.transfers else ""
    text = f"rank {position.rank}: {', '.join(filter(None, (used, traffic, sent)))}"
    return Evidence(source="movement", text=text, ranks=str(position.rank), weight=weight)


def peers_evidence(picture: Picture, suspects: Sequence[Position]) -> tuple[Evidence, ...]:
    """Tell where the others wait; the more of the live ranks they are, the heavier."""
    waiting = picture.waiting_without(item.rank for item in suspects)
    if not waiting:
        return _gave_up_evidence(picture)
    share = len(waiting) / max(len(picture.live), 1)
    presumed = all(item.presumed for item in waiting)
    how = ", presumed: most ranks stay there" if presumed else ""
    verb = "waits" if len(waiting) == 1 else "wait"
    return (
        Evidence(
            source="peers",
            text=f"{count_ranks(len(waiting))} {verb} in {name_wait(waiting)}{how}",
            ranks=ranks_of(waiting),
            weight=round((0.4 if presumed else 0.55) * max(share, 0.5), 2),
        ),
    )


def _gave_up_evidence(picture: Picture) -> tuple[Evidence, ...]:
    left = picture.gave_up
    if not left:
        return ()
    text = f"{count_ranks(len(left))} waited in {name_wait(left)} in this stall and gave up"
    return (Evidence(source="peers", text=text, ranks=ranks_of(left), weight=GAVE_UP_WEIGHT),)


def beat_evidence(picture: Picture, position: Position) -> tuple[Evidence, ...]:
    """Compare its last step with those of the waiting ranks; an equal one says nothing."""
    steps = [item.step for item in picture.waiting_without([position.rank])]
    known = [step for step in steps if step is not None]
    if position.step is None or not known:
        return ()
    phase = f" in phase {clean(position.phase, 64)}" if position.phase else ""
    text = (
        f"rank {position.rank}: last step {position.step}, {say_duration(position.age_s)} ago"
        f"{phase}; the waiting ranks are at step {say_span(known)}"
    )
    weight = 0.4 if position.step < min(known) else 0.15
    return (Evidence(source="heartbeat", text=text, ranks=str(position.rank), weight=weight),)


def say_span(steps: Sequence[int]) -> str:
    """Say "1234" or "1233 to 1234"."""
    low, high = min(steps), max(steps)
    return str(low) if low == high else f"{low} to {high}"


def find_place(position: Position) -> WaitPlace | None:
    """Return what a sleeping rank waits for; null when the tables do not know it."""
    if not position.asleep or position.stack is None:
        return None
    return find_wait_place(position.stack.frames, position.wait, position.kernel)


def say_place_of_wait(position: Position) -> str:
    """Say "; it waits for an item in a queue", or nothing."""
    place = find_place(position)
    return f"; it {place.says}" if place and place.says else ""


def advise_wait(position: Position) -> str:
    """Return the one step that helps there, empty when none is known."""
    place = find_place(position)
    if place is None:
        return ""
    return place.advice.format(
        rank=position.rank,
        pid=position.evidence.pid,
        node=clean(position.evidence.node, 64) or "its node",
        target=clean(position.kernel.target, 120) or "it",
    )


def wait_evidence(picture: Picture, suspects: Sequence[Position]) -> tuple[Evidence, ...]:
    """Tell on which path the others wait for these ranks, where the records show one."""
    if picture.graph is None:
        return ()
    accused = {item.rank for item in suspects}
    told: list[Evidence] = []
    for end in picture.graph.ends:
        if len(told) == MAX_TOLD:
            break  # each path is a search over all who wait
        if accused.intersection(end.ranks) and (path := picture.graph.path_to(end)):
            weight = RECORD_WEIGHT if end.certain else UNSURE_WEIGHT
            ranks = sorted({rank for rank, _ in path}.union(end.ranks))
            text = say_path(path, end)
            told.append(
                Evidence(source="records", text=text, ranks=format_ranks(ranks), weight=weight)
            )
    return (*told, *_comm_thread_evidence(picture, suspects))


def _comm_thread_evidence(picture: Picture, suspects: Sequence[Position]) -> Iterator[Evidence]:
    """Tell how often the suspects called what is waited for beside main, where no stack shows it.

    A thread that died or never called leaves nothing but its count.
    """
    if picture.comm_threads is None or picture.graph is None or picture.records is None:
        return
    threads = ", ".join(f"`{clean(name, 60)}`" for name, _ in sorted(picture.comm_threads.roots))
    for item in suspects[:MAX_TOLD]:
        kept = (p for p in picture.graph.points if item.rank in p.missing and p.group)
        if (point := next(kept, None)) is None or point.group is None:
            continue
        if (log := picture.records.log_of(item.rank, point.group.id)) is None:
            continue
        text = (
            f"collectives are made beside main, in {threads}: {name_ranks(point.waiting)} "
            f"called number {point.number} of {describe_group(point.group)}, "
            f"rank {item.rank} {log.called}"
        )
        ranks = format_ranks([*point.waiting, item.rank])
        yield Evidence(source="records", text=text, ranks=ranks, weight=RECORD_WEIGHT)


def say_path(path: Sequence[tuple[int, WaitPoint]], end: End) -> str:
    """Say "rank 0 waits in ... for rank 2, which waits in ... for rank 3, which has not ..."."""
    shown = [*path[:1], *path[-MAX_HOPS + 1 :]] if len(path) > MAX_HOPS else list(path)
    parts = []
    for index, (rank, point) in enumerate(shown):
        whom = shown[index + 1][0] if index + 1 < len(shown) else end.ranks[0]
        subject = f"rank {rank} waits" if index == 0 else "which waits"
        skipped = " and others" if len(path) > MAX_HOPS and index == 0 else ""
        parts.append(f"{subject} in {name_point(point)} for rank {whom}{skipped}")
    return f"{', '.join(parts)}, {_say_absence(shown[-1][1], end.ranks[0])}"


def _say_absence(point: WaitPoint, rank: int) -> str:
    if rank not in point.missing:
        return "of which it is not known"
    if point.kind is PointKind.RECEIVE:
        return "which has not sent it"
    return "which has not entered it" if point.kind is PointKind.COLLECTIVE else "which takes none"
