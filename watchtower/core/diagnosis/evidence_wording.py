"""Writes what was seen of ranks as evidence and as the clauses of a summary; decides nothing.

The tone: which rank, on which node, in which call at which line, for how long, blocked on what, and
what the others do. No adjectives.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.core.diagnosis.deaths.gave_up import find_gave_up
from watchtower.core.diagnosis.standing import Shape, Standing
from watchtower.core.diagnosis.standings import Standings
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

NAMES_OF_HIDDEN_WAITS = {
    FrameClass.BACKWARD: "backward",
    FrameClass.DEVICE: "a wait for the device",
}


def name_rank(standing: Standing) -> str:
    """Say "rank 37 (gpu-042, pid 4711)"."""
    evidence = standing.evidence
    pid = "" if evidence.pid is None else f"pid {evidence.pid}"
    inside = ", ".join(filter(None, (clean(evidence.node, 64), pid)))
    return f"rank {evidence.rank} ({inside})" if inside else f"rank {evidence.rank}"


def ranks_of(standings: Sequence[Standing]) -> str:
    """Write the rank set of these."""
    return format_ranks(item.rank for item in standings)


def accuse(standing: Standing, cause: Cause, why: str) -> Suspect:
    """Make a suspect of a rank."""
    return Suspect(
        rank=standing.rank,
        node=clean(standing.evidence.node, 64),
        cause=cause,
        why=capitalise(why),
        pid=standing.evidence.pid,
        where=where_of(standing),
    )


def where_of(standing: Standing) -> str | None:
    """Give "data.py:88 in __next__", null without a stack."""
    return None if standing.reading is None else clean(standing.reading.where)


def say_place(standing: Standing) -> str:
    """Say "has been in `__next__` at data.py:88 for 9 s"."""
    duration = say_duration(standing.age_s)
    if standing.reading is None:
        return f"has made no step for {duration}"
    function, at = clean(standing.reading.function, 80), clean(standing.reading.at, 80)
    return f"has been in `{function}` at {at} for {duration}"


def say_wait(standing: Standing) -> str:
    """Say ", blocked in read() on /mnt/shards/0042.tar", or nothing when it is not known."""
    if not standing.asleep or not standing.wait.says:
        return ""
    return f", {standing.wait.says}"


def say_others(standings: Standings, suspects: Sequence[Standing]) -> str:
    """Say what the other ranks do: "; 511 ranks wait for it in all_reduce", or nothing."""
    waiting = standings.waiting_without(item.rank for item in suspects)
    if waiting:
        return f"; {say_waiting(waiting, suspects)} in {name_wait(waiting)}"
    left = find_gave_up(standings)
    words = f"waited for {_name_awaited(suspects)} in {name_wait(left)} and gave up"
    return f"; {count_ranks(len(left))} {words}" if left else ""


def say_waiting(waiting: Sequence[Standing], suspects: Sequence[Standing]) -> str:
    """Say "511 ranks wait for it": of the suspects, or for other ranks without any; "" if none."""
    if not waiting:
        return ""
    verb = "waits" if len(waiting) == 1 else "wait"
    if all(item.presumed for item in waiting):
        verb = "seems to wait" if len(waiting) == 1 else "seem to wait"
    return f"{count_ranks(len(waiting))} {verb} for {_name_awaited(suspects)}"


def _name_awaited(suspects: Sequence[Standing]) -> str:
    if not suspects:
        return "other ranks"
    return "it" if len(suspects) == 1 else "them"


def name_wait(waiting: Sequence[Standing]) -> str:
    """Name the call most of these wait in; records show waits of ranks that gave no stack, too."""
    by_call = _by_call(waiting)
    return max(by_call, key=lambda name: len(by_call[name]), default="a collective")


def name_waits(waiting: Sequence[Standing]) -> str:
    """Name the call these wait in; where there are several, each with its ranks."""
    by_call = _by_call(waiting)
    if len(by_call) < 2:
        return name_wait(waiting)
    calls = sorted(by_call.items(), key=lambda found: (-len(found[1]), found[1][0].rank))
    told = [f"{call} ({name_ranks(i.rank for i in items)})" for call, items in calls[:MAX_WAITS]]
    return join_words([*told, *(["other calls"] if len(calls) > MAX_WAITS else [])])


def _by_call(waiting: Sequence[Standing]) -> dict[str, list[Standing]]:
    by_call: dict[str, list[Standing]] = {}
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


def bad_loss_evidence(standings: Standings) -> tuple[Evidence, ...]:
    """Tell of ranks whose loss became NaN or infinite; it explains no wait and weighs nothing."""
    bad = [item for item in standings.by_rank.values() if item.has_bad_loss]
    if not bad:
        return ()
    text = f"{name_ranks(item.rank for item in bad)} reported a NaN or infinite loss"
    return (Evidence(source="heartbeat", text=text, ranks=ranks_of(bad), weight=0.0),)


def say_likewise(suspects: Sequence[Standing]) -> str:
    """Say "; likewise ranks 4-6" of the suspects after the first."""
    rest = suspects[1:]
    return f"; likewise {name_ranks(item.rank for item in rest)}" if rest else ""


def stack_evidence(standing: Standing) -> tuple[Evidence, ...]:
    """Quote the rank's stack and tell whether it stayed."""
    if standing.stack is None:
        return ()
    stays = {
        Shape.SAME: "the same in two dumps",
        Shape.NEAR: "the same user frames in two dumps",
        Shape.CHANGED: "another stack than in the dump before",
        Shape.UNKNOWN: "one dump",
    }[standing.shape]
    text = f"rank {standing.rank}: {clean(describe_frames(standing.stack.frames), 400)} ({stays})"
    weight = STACK_WEIGHTS[standing.shape]
    return (Evidence(source="stacks", text=text, ranks=str(standing.rank), weight=weight),)


def kernel_evidence(standing: Standing, weight: float) -> tuple[Evidence, ...]:
    """Quote what the kernel says its main thread waits for."""
    if not standing.wait.says:
        return ()
    text = f"rank {standing.rank}: state {standing.state.value}, {standing.wait.says}"
    return (Evidence(source="kernel", text=text, ranks=str(standing.rank), weight=weight),)


def movement_evidence(standing: Standing, weight: float) -> Evidence:
    """Quote CPU use and storage traffic of the rank's process tree."""
    movement = standing.evidence.movement
    written = movement.write_bytes_per_s + movement.read_bytes_per_s
    traffic = f"{written / 1e6:.1f} MB/s of storage traffic" if movement.io_readable else ""
    used = f"{movement.cpu_cores:.2f} cores used"
    sent = f"{movement.socket_bytes_per_s / 1e6:.1f} MB/s over TCP" if standing.transfers else ""
    text = f"rank {standing.rank}: {', '.join(filter(None, (used, traffic, sent)))}"
    return Evidence(source="movement", text=text, ranks=str(standing.rank), weight=weight)


def peers_evidence(standings: Standings, suspects: Sequence[Standing]) -> tuple[Evidence, ...]:
    """Tell where the others wait; the more of the live ranks they are, the heavier."""
    waiting = standings.waiting_without(item.rank for item in suspects)
    if not waiting:
        return _gave_up_evidence(standings)
    share = len(waiting) / max(len(standings.live), 1)
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


def _gave_up_evidence(standings: Standings) -> tuple[Evidence, ...]:
    left = find_gave_up(standings)
    if not left:
        return ()
    text = f"{count_ranks(len(left))} waited in {name_wait(left)} in this stall and gave up"
    return (Evidence(source="peers", text=text, ranks=ranks_of(left), weight=GAVE_UP_WEIGHT),)


def beat_evidence(standings: Standings, standing: Standing) -> tuple[Evidence, ...]:
    """Compare its last step with those of the waiting ranks; an equal one says nothing."""
    steps = [item.step for item in standings.waiting_without([standing.rank])]
    known = [step for step in steps if step is not None]
    if standing.step is None or not known:
        return ()
    phase = f" in phase {clean(standing.phase, 64)}" if standing.phase else ""
    text = (
        f"rank {standing.rank}: last step {standing.step}, {say_duration(standing.age_s)} ago"
        f"{phase}; the waiting ranks are at step {say_span(known)}"
    )
    weight = 0.4 if standing.step < min(known) else 0.15
    return (Evidence(source="heartbeat", text=text, ranks=str(standing.rank), weight=weight),)


def say_span(steps: Sequence[int]) -> str:
    """Say "1234" or "1233 to 1234"."""
    low, high = min(steps), max(steps)
    return str(low) if low == high else f"{low} to {high}"


def find_place(standing: Standing) -> WaitPlace | None:
    """Return what a sleeping rank waits for; null when the tables do not know it."""
    if not standing.asleep or standing.stack is None:
        return None
    return find_wait_place(standing.stack.frames, standing.wait, standing.kernel)


def say_place_of_wait(standing: Standing) -> str:
    """Say "; it waits for an item in a queue", or nothing."""
    place = find_place(standing)
    return f"; it {place.says}" if place and place.says else ""


def advise_wait(standing: Standing) -> str:
    """Return the one step that helps there, empty when none is known."""
    place = find_place(standing)
    if place is None:
        return ""
    return place.advice.format(
        rank=standing.rank,
        pid=standing.evidence.pid,
        node=clean(standing.evidence.node, 64) or "its node",
        target=clean(standing.kernel.target, 120) or "it",
    )
