"""Clauses about ranks that sentences are made of.

The tone: which rank, on which node, in which call at which line, for how long, blocked on what, and
what the others do. No adjectives.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Place, Position
from watchtower.evidence.frames import FrameClass, StackReading
from watchtower.evidence.native import DEVICE_WAIT
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean, count_ranks, format_duration, join_sentences, join_words

BARE_NAMES = frozenset({"wait", "Work.wait", "poll", "join", "synchronize"})
"""Calls whose name says nothing without the line that makes them."""

MAX_WAITS = 3
"""Calls named where not all wait in one; a call and the next are two."""

SHOWN_S = 1.0
"""Least seconds until a sleep ends that are shown: a shorter one is one of many in a loop."""

MAX_NAMED = 8
"""Ranks named in the middle of a sentence; more are counted."""

NAMES_OF_HIDDEN_WAITS = {FrameClass.BACKWARD: "backward", FrameClass.DEVICE: DEVICE_WAIT}


def name_rank(position: Position) -> str:
    """Return "rank 37 (gpu-042, pid 4711)", with the role of the rank in front if it has one."""
    evidence = position.evidence
    pid = "" if evidence.pid is None else f"pid {evidence.pid}"
    inside = ", ".join(filter(None, (clean(evidence.role, 64), clean(evidence.node, 64), pid)))
    return f"rank {evidence.rank} ({inside})" if inside else f"rank {evidence.rank}"


def node_of(position: Position) -> str:
    """Return "gpu-042", or "its node" where that is not known."""
    return clean(position.evidence.node, 64) or "its node"


def where_of(position: Position) -> str | None:
    """Return "data.py:88 in __next__", null without a stack."""
    return None if position.reading is None else clean(position.reading.where)


def write_at(position: Position) -> str:
    """Return " at data.py:88 in __next__", or nothing without a stack."""
    where = where_of(position)
    return f" at {where}" if where else ""


def write_place(position: Position) -> str:
    """Return "has been in `__next__` at data.py:88 for 9 s", with the phase if it is in one."""
    duration, phase = format_duration(position.age_s), write_phase(position)
    if position.of_files:
        return _write_written_place(position)
    if position.reading is None:
        return f"has made no step{phase} for {duration}"
    function, at = clean(position.reading.function, 80), clean(position.reading.at, 80)
    return f"has been in `{function}` at {at}{phase} for {duration}"


def _write_written_place(position: Position) -> str:
    """Return the place of a rank known from files: there, times are known of some."""
    since = f" for {format_duration(position.age_s)}" if position.age_s > 0 else ""
    if position.reading is None:
        return f"has not come to the call of the others{since}"
    function, at = clean(position.reading.function, 80), clean(position.reading.at, 80)
    return f"is in `{function}` at {at}{since}"


def write_phase(position: Position) -> str:
    """Return " in phase checkpoint", or nothing outside phases."""
    return f" in phase {clean(position.phase, 64)}" if position.phase else ""


def write_wait(position: Position) -> str:
    """Return ", blocked in read() on /mnt/shards/0042.tar", or nothing when it is not known."""
    if not position.asleep or not position.wait.text:
        return ""
    return f", {position.wait.text}{write_timer(position)}"


def write_timer(position: Position) -> str:
    """Return " for another 40 s" of a sleep, or nothing if it is not known when its call ends."""
    native = position.native
    if native is None or native.thread or native.ends_in_s is None or native.ends_in_s < SHOWN_S:
        return ""
    return f" for another {format_duration(native.ends_in_s)}"


def write_place_of_wait(position: Position) -> str:
    """Return "it waits for an item in a queue", or nothing."""
    place = position.wait_place
    return f"it {place.text}" if place and place.text else ""


def write_others(picture: Picture, suspects: Sequence[Position]) -> str:
    """Return what the other ranks do: "511 ranks wait for rank 3 in all_reduce", or nothing."""
    waiting = picture.waiting_without(item.rank for item in suspects)
    if waiting:
        return f"{write_waiting(waiting, suspects)} in {name_wait(waiting)}"
    left = picture.gave_up
    words = f"waited for {_name_awaited(suspects)} in {name_wait(left)} and gave up"
    return f"{count_ranks(len(left))} {words}" if left else ""


def write_waiting(waiting: Sequence[Position], suspects: Sequence[Position]) -> str:
    """Return "511 ranks wait for rank 3", or for other ranks without suspects; "" if none wait."""
    if not waiting:
        return ""
    verb = "waits" if len(waiting) == 1 else "wait"
    if all(item.presumed for item in waiting):
        verb = "seems to wait" if len(waiting) == 1 else "seem to wait"
    return f"{count_ranks(len(waiting))} {verb} for {_name_awaited(suspects)}"


def _name_awaited(suspects: Sequence[Position]) -> str:
    if not suspects:
        return "other ranks"
    return name_some(suspects) if len(suspects) <= MAX_NAMED else "them"


def name_some(positions: Sequence[Position]) -> str:
    """Return "ranks 0-1,3", or "511 ranks" where these are too many to name."""
    if len(positions) > MAX_NAMED:
        return count_ranks(len(positions))
    return name_ranks(item.rank for item in positions)


def write_likewise(suspects: Sequence[Position]) -> str:
    """Return "the same is true for ranks 4-6" of the suspects after the first. Those that are in
    another place have a clause of their own."""
    first = _key_of_place(suspects[0])
    alike = [item.rank for item in suspects[1:] if _key_of_place(item) == first]
    others = [item.rank for item in suspects[1:] if _key_of_place(item) != first]
    verb = "is" if len(others) == 1 else "are"
    return join_sentences(
        f"the same is true for {name_ranks(alike)}" if alike else "",
        f"{name_ranks(others)} {verb} also suspected, in another place" if others else "",
    )


def _key_of_place(position: Position) -> tuple[str, ...]:
    """Return what is equal for ranks at one line, in one kind of wait."""
    reading = position.reading
    at = (reading.function, reading.at) if reading else ()
    return (position.place.value, position.wait.wait_class, *at)


def name_wait(waiting: Sequence[Position]) -> str:
    """Name the call most of these wait in; collective logs show more waits than stacks."""
    by_call = _by_call(waiting)
    return max(by_call, key=lambda name: len(by_call[name]), default="a collective")


def name_waits(waiting: Sequence[Position]) -> str:
    """Name the call these wait in; where there are several, each with its ranks."""
    by_call = _by_call(waiting)
    if len(by_call) < 2:
        return name_wait(waiting)
    calls = sorted(by_call.items(), key=lambda found: (-len(found[1]), found[1][0].rank))
    named = [f"{call} ({name_ranks(i.rank for i in items)})" for call, items in calls[:MAX_WAITS]]
    return join_words([*named, *(["other calls"] if len(calls) > MAX_WAITS else [])])


def _by_call(waiting: Sequence[Position]) -> dict[str, list[Position]]:
    by_call: dict[str, list[Position]] = {}
    names: dict[tuple[StackReading, bool], str] = {}
    for item in waiting:
        is_unknown = item.place is Place.CALL_UNKNOWN
        if is_unknown and item.waits_for_device:
            by_call.setdefault(DEVICE_WAIT, []).append(item)
            continue
        if item.reading is None:
            continue
        key = item.reading, is_unknown
        name = names.get(key) or names.setdefault(key, _name_call(*key))
        by_call.setdefault(name, []).append(item)
    return by_call


def _name_call(reading: StackReading, presumed: bool) -> str:
    if presumed:
        return f"`{clean(reading.function, 80)}` at {clean(reading.at, 80)}"
    if not reading.frame_class.traits.waits_for_ranks:
        # Only a collective log shows that it waits: the line that it is at names something else.
        return NAMES_OF_HIDDEN_WAITS.get(reading.frame_class, "a collective")
    called = clean(reading.what, 80)
    return f"{called}() at {clean(reading.at, 80)}" if called in BARE_NAMES else called
