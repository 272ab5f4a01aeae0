"""Describes what a rank waits for besides other ranks, by tables of calls and kernel waits.

The result is a text and advice, but not a cause: an empty queue shows where to search, but not
which process is at fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from watchtower.evidence.facts import TextPattern, part, read_facts, whole
from watchtower.evidence.frames import last_component
from watchtower.evidence.kernel import WaitReading
from watchtower.wire.dumps import KernelWait
from watchtower.wire.stacks import Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitPlace:
    """One entry of the table."""

    text: str
    """Text after "it"; empty if the text of the kernel wait is enough."""
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
    return WaitPlace(text=entry["text"], advice=entry["advice"])


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


def find_wait_place(
    frames: tuple[Frame, ...], wait: WaitReading, kernel: KernelWait
) -> WaitPlace | None:
    """Return what a sleeping thread waits for; None if no table entry matches."""
    if called := find_called(frames):
        return called
    fits = (item for item in _BLOCKED if item.wait_class == wait.wait_class)
    return next(
        (item.place for item in fits if not item.syscalls or kernel.syscall in item.syscalls), None
    )


def find_called(frames: tuple[Frame, ...]) -> WaitPlace | None:
    """Return what a stack waits for, by the library calls inside the user's innermost frame."""
    called = [found for frame in called_by_user(frames) if (found := _find(frame))]
    return called[-1] if called else None


def called_by_user(frames: tuple[Frame, ...]) -> Iterator[Frame]:
    """Yield the library frames inside the user's innermost frame, innermost first."""
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
