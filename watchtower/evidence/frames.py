"""Reads Python frames and stacks: what a rank is doing, and where in the user's own code.

The table of names is data (`facts/frame_classes.toml`). This module decides which frame of a stack
counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from watchtower.evidence.facts import read_facts
from watchtower.evidence.frame_class import FrameClass
from watchtower.evidence.patterns import TextPattern, part, whole
from watchtower.wire.stacks import Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePattern:
    """One entry of the table."""

    frame_class: FrameClass
    function: TextPattern | None
    owner: TextPattern | None
    file: TextPattern | None
    library: bool | None
    by_name: bool
    """The class depends only on a name that the user chose."""
    calls_back: bool
    """The frame is in a library whose purpose is to run the user's code."""

    def matches(self, owner: str, function: str, file: str, library: bool) -> bool:
        """Return whether every condition of the entry holds."""
        return (
            (self.library is None or self.library == library)
            and (self.function is None or self.function.matches(function))
            and (self.owner is None or self.owner.matches(owner))
            and (self.file is None or self.file.matches(file))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StackReading:
    """The class of one stack, and its place in the code."""

    frame_class: FrameClass
    what: str
    """Function that determines the class, such as "all_reduce"."""
    what_at: str
    """Its position, such as "ring.py:120"."""
    function: str
    """Innermost function of the user's own code. In a stack without one: the function that
    determines the class."""
    at: str
    """Its position, such as "data.py:88"."""
    by_name: bool = False
    """The class depends only on names that the user chose."""
    by_library: bool = False
    """The class depends on the file of a known library."""

    @property
    def where(self) -> str:
        """Position and function as a verdict shows them: "data.py:88 in __next__"."""
        return f"{self.at} in {self.function}"


def _read_pattern(entry: dict[str, Any]) -> FramePattern:
    def read(key: str, make: Callable[[str, int], TextPattern]) -> TextPattern | None:
        return make(entry[key], re.IGNORECASE) if key in entry else None

    return FramePattern(
        frame_class=FrameClass(entry["class"]),
        function=read("function", whole),
        owner=read("owner", whole),
        file=read("file", part),
        library=entry.get("library"),
        by_name=entry.get("by_name", False),
        calls_back=entry.get("calls_back", False),
    )


PATTERNS = tuple(_read_pattern(entry) for entry in read_facts("frame_classes")["frame"])


def last_component(function: str) -> str:
    """Return the last part of a name: `__next__` for `outer.<locals>.ShardReader.__next__`."""
    return function.rpartition(".")[2]


def name_line(frame: Frame) -> str:
    """Return file and line of a frame: "data.py:88"."""
    return f"{frame.file.rpartition('/')[2]}:{frame.line}"


@lru_cache(maxsize=65536)
def find_pattern(function: str, file: str, library: bool) -> FramePattern | None:
    """Return the first entry of the table that matches a frame, else None.

    The line of the frame is not an argument, so that the cache has fewer entries.
    """
    outer, _, name = function.rpartition(".")
    owner = last_component(outer)
    return next((p for p in PATTERNS if p.matches(owner, name, file, library)), None)


def _pattern_of(frame: Frame) -> FramePattern | None:
    return find_pattern(frame.function, frame.file, frame.library)


def classify_frame(frame: Frame) -> FrameClass:
    """Return the class of a frame."""
    pattern = _pattern_of(frame)
    if pattern is not None:
        return pattern.frame_class
    return FrameClass.NONE if frame.library else FrameClass.USER


def read_stack(frames: tuple[Frame, ...]) -> StackReading | None:
    """Return the reading of a stack, innermost frame first; None without frames."""
    if not frames:
        return None
    classes = [classify_frame(frame) for frame in frames]
    purposes = _find_purposes(frames, classes)
    index = _choose_purpose(classes, purposes) if purposes else _find_known(classes)
    meant = _find_called(frames, classes, purposes, index)
    shown = next((frame for frame in frames if not frame.library), frames[index])
    alike = [frame for frame, item in zip(frames, classes, strict=True) if item is classes[index]]
    return StackReading(
        frame_class=classes[index],
        what=last_component(meant.function),
        what_at=name_line(meant),
        function=last_component(shown.function),
        at=name_line(shown),
        by_name=all(pattern.by_name for frame in alike if (pattern := _pattern_of(frame))),
        by_library=any(frame.library and _is_known_by_file(frame) for frame in alike),
    )


def _find_purposes(frames: tuple[Frame, ...], classes: list[FrameClass]) -> list[int]:
    """Return the indexes of the frames that show the purpose of the stack, innermost first.

    A library frame that runs the user's code does not count:
    * Its name does not describe that code. A function `run_with_checkpoint` may run a whole step.
    * Its collective may be pickling a user's object, or be interrupted by a signal handler. Then
      neither this call nor any call around it has begun to wait.

    The exception is a library whose purpose is to run the user's code (`calls_back`).
    """
    found: list[int] = []
    has_own = is_called_back = False
    for index, (frame, item) in enumerate(zip(frames, classes, strict=True)):
        if item.traits.shows_purpose:
            if has_own and frame.library and not _calls_back(frame):
                is_called_back = True
            elif not item.traits.waits_for_ranks or not is_called_back:
                found.append(index)
        has_own = has_own or (not frame.library and bool(frame.file))
    return found


def _calls_back(frame: Frame) -> bool:
    pattern = _pattern_of(frame)
    return pattern is not None and pattern.calls_back


def _is_known_by_file(frame: Frame) -> bool:
    pattern = _pattern_of(frame)
    return pattern is not None and pattern.file is not None


def _find_known(classes: list[FrameClass]) -> int:
    """Return the index of the innermost frame with any class; 0 if no frame has a class."""
    known = [
        index
        for index, item in enumerate(classes)
        if not item.traits.shows_purpose and item is not FrameClass.NONE
    ]
    # Waiting for a thread or for clients is implemented by a lock or a condition inside.
    called = (index for index in known if classes[index] is not FrameClass.LOCK)
    outer = next(called, None)
    if outer is not None and classes[outer].traits.waits_by_lock:
        return outer
    return known[0] if known else 0


def _choose_purpose(classes: list[FrameClass], purposes: list[int]) -> int:
    """Return the index of the frame whose class counts: the innermost purpose.

    If set-up and collective are nested, the class of the outer one counts. Set-up ends with a
    barrier, and a collective may set up connections when it is used for the first time.
    """
    if not classes[purposes[0]].traits.waits_for_ranks:
        return purposes[0]
    waits = [index for index in purposes if classes[index].traits.waits_for_ranks]
    return next(index for index in waits if classes[index] is classes[waits[-1]])


def _find_called(
    frames: tuple[Frame, ...], classes: list[FrameClass], purposes: list[int], index: int
) -> Frame:
    """Return the frame of the call that a user knows.

    For set-up this is the outermost one, because init_process_group has many small steps. For a
    collective it is the outermost one in the same file: a barrier may be implemented by all_reduce.
    """
    wanted, called = classes[index], frames[index]
    if not wanted.traits.waits_for_ranks:
        return called
    for outer in purposes:
        is_alike = classes[outer] is wanted and outer > index
        if is_alike and (wanted is FrameClass.INIT or frames[outer].file == called.file):
            called = frames[outer]
    return called
