"""What a rank waits for besides other ranks, by reviewed calls and kernel waits: words and advice.

It names no cause: that a queue is empty says what to look at, not whose fault it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from watchtower.core.diagnosis.facts import read_facts
from watchtower.core.diagnosis.frames import last_component
from watchtower.core.diagnosis.patterns import TextPattern, part, whole
from watchtower.core.diagnosis.standing import Standing
from watchtower.core.text import clean
from watchtower.wire.stacks import Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitPlace:
    """One entry of the table."""

    says: str
    """Completes "it ...", empty when the kernel's own words say it."""
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Called:
    file: TextPattern
    function: TextPattern
    place: WaitPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocked:
    wait_class: str
    syscalls: frozenset[str]
    place: WaitPlace


def _read_place(entry: dict[str, Any]) -> WaitPlace:
    return WaitPlace(says=entry["says"], advice=entry["advice"])


_TABLE = read_facts("wait_places")
_CALLED = tuple(
    _Called(
        file=part(entry["file"]),
        function=whole(entry["function"]),
        place=_read_place(entry),
    )
    for entry in _TABLE["frame"]
)
_BLOCKED = tuple(
    _Blocked(
        wait_class=entry["class"],
        syscalls=frozenset(entry.get("syscalls", ())),
        place=_read_place(entry),
    )
    for entry in _TABLE["call"]
)


def find_place(standing: Standing) -> WaitPlace | None:
    """Find what a sleeping rank waits for; null when the tables do not know it."""
    if not standing.asleep or standing.stack is None:
        return None
    if called := find_called(standing.stack.frames):
        return called
    wait, call = standing.wait.wait_class, standing.kernel.syscall
    fits = (item for item in _BLOCKED if item.wait_class == wait)
    return next((item.place for item in fits if not item.syscalls or call in item.syscalls), None)


def find_called(frames: tuple[Frame, ...]) -> WaitPlace | None:
    """Find what a stack waits for by the calls that the user's own code makes in it."""
    called = [found for frame in called_by_user(frames) if (found := _find(frame))]
    return called[-1] if called else None


def say_place_of_wait(standing: Standing) -> str:
    """Say "; it waits for an item in a queue", or nothing."""
    place = find_place(standing)
    return f"; it {place.says}" if place and place.says else ""


def advise_wait(standing: Standing) -> str:
    """Give the one step that helps there, empty when none is known."""
    place = find_place(standing)
    if place is None:
        return ""
    return place.advice.format(
        rank=standing.rank,
        pid=standing.evidence.pid,
        node=clean(standing.evidence.node, 64) or "its node",
        target=clean(standing.kernel.target, 120) or "it",
    )


def called_by_user(frames: tuple[Frame, ...]) -> Iterator[Frame]:
    """Give the frames below the user's innermost one, innermost first."""
    for frame in frames:
        if not frame.library:
            return
        yield frame


def _find(frame: Frame) -> WaitPlace | None:
    name = last_component(frame.function)
    for item in _CALLED:
        if item.function.matches(name) and item.file.matches(frame.file):
            return item.place
    return None
