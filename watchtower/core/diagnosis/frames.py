"""Reads Python frames and stacks: what a rank is doing, and where in the user's own code.

The table of names is data (`facts/frame_classes.toml`); this module holds only the order in which
frames of one stack overrule each other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from watchtower.core.diagnosis.facts import read_facts
from watchtower.wire.stacks import Frame


class FrameClass(Enum):
    """What a frame says about the rank it belongs to."""

    INIT = "init"
    COLLECTIVE = "collective"
    DATALOADER = "dataloader"
    CHECKPOINT = "checkpoint"
    COMPILE = "compile"
    DEVICE = "device"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    LOCK = "lock"
    NETWORK = "network"
    CHILD = "child"
    """Waits for a program it has started."""
    THREAD = "thread"
    """Waits for a thread it has started."""
    USER = "user"
    NONE = "none"


PURPOSES = frozenset(
    {
        FrameClass.INIT,
        FrameClass.COLLECTIVE,
        FrameClass.DATALOADER,
        FrameClass.CHECKPOINT,
        FrameClass.COMPILE,
    }
)
"""Classes that say what a call is for: they overrule whatever it calls in turn, so that a socket
read inside all_reduce is a collective. Between two of them the inner one counts."""

WAITING_CLASSES = frozenset({FrameClass.COLLECTIVE, FrameClass.INIT})
"""A rank in one of these waits for other ranks, whatever else is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePattern:
    """One entry of the table."""

    frame_class: FrameClass
    function: re.Pattern[str] | None
    owner: re.Pattern[str] | None
    file: re.Pattern[str] | None
    library: bool | None
    by_name: bool
    """The user's own choice of a name is all that speaks for the class."""

    def matches(self, owner: str, function: str, file: str, library: bool) -> bool:
        """Tell whether each condition given by the entry holds."""
        return (
            (self.library is None or self.library == library)
            and (self.function is None or self.function.fullmatch(function) is not None)
            and (self.owner is None or self.owner.fullmatch(owner) is not None)
            and (self.file is None or self.file.search(file) is not None)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StackReading:
    """What one stack says."""

    frame_class: FrameClass
    what: str
    """Function that gave the class, such as "all_reduce"."""
    what_at: str
    """Its position, such as "ring.py:120"."""
    function: str
    """Deepest function of the user's own code, or the best there is in a library-only stack."""
    at: str
    """Its position, such as "data.py:88"."""
    by_name: bool = False
    """The class rests on names that the user chose."""

    @property
    def where(self) -> str:
        """Position and function as a verdict shows them: "data.py:88 in __next__"."""
        return f"{self.at} in {self.function}"


def _read_pattern(entry: dict[str, Any]) -> FramePattern:
    def regex(key: str) -> re.Pattern[str] | None:
        return re.compile(entry[key], re.IGNORECASE) if key in entry else None

    return FramePattern(
        frame_class=FrameClass(entry["class"]),
        function=regex("function"),
        owner=regex("owner"),
        file=regex("file"),
        library=entry.get("library"),
        by_name=entry.get("by_name", False),
    )


PATTERNS = tuple(_read_pattern(entry) for entry in read_facts("frame_classes")["frame"])


def last_component(function: str) -> str:
    """Give the bare name: `outer.<locals>.ShardReader.__next__` is `__next__`."""
    return function.rpartition(".")[2]


def position(frame: Frame) -> str:
    """Give file and line as people write them: "data.py:88"."""
    return f"{frame.file.rpartition('/')[2]}:{frame.line}"


@lru_cache(maxsize=65536)
def find_pattern(function: str, file: str, library: bool) -> FramePattern | None:
    """Find the first entry of the table that knows a frame; its line does not matter."""
    outer, _, name = function.rpartition(".")
    owner = last_component(outer)
    return next((p for p in PATTERNS if p.matches(owner, name, file, library)), None)


def classify_frame(frame: Frame) -> FrameClass:
    """Name the class of a frame."""
    pattern = find_pattern(frame.function, frame.file, frame.library)
    if pattern is not None:
        return pattern.frame_class
    return FrameClass.NONE if frame.library else FrameClass.USER


def _rests_on_names(frames: tuple[Frame, ...], frame_class: FrameClass) -> bool:
    """Tell whether every frame of a class was recognised by a name that the user chose."""
    found = (find_pattern(frame.function, frame.file, frame.library) for frame in frames)
    return all(p.by_name for p in found if p is not None and p.frame_class is frame_class)


def read_stack(frames: tuple[Frame, ...]) -> StackReading | None:
    """Read a stack, innermost frame first; null when it has no frames."""
    if not frames:
        return None
    classes = [classify_frame(frame) for frame in frames]
    index = _find_meaningful(classes[: _end_of_callback(frames, classes)])
    meant = _find_called(frames, classes, index)
    shown = next((frame for frame in frames if not frame.library), frames[index])
    return StackReading(
        frame_class=classes[index],
        what=last_component(meant.function),
        what_at=position(meant),
        function=last_component(shown.function),
        at=position(shown),
        by_name=_rests_on_names(frames, classes[index]),
    )


def _end_of_callback(frames: tuple[Frame, ...], classes: list[FrameClass]) -> int:
    """Count the innermost frames that say what the stack is about: all, or those of a callback.

    A library's collective that runs the user's own code, to pickle an object or to handle a signal,
    has not begun to wait. Set-up is left out: stores and rendezvous may be the user's.
    """
    for index, item in enumerate(classes):
        if item in PURPOSES:
            calls_back = item is FrameClass.COLLECTIVE and frames[index].library
            own = any(inner is FrameClass.USER for inner in classes[:index])
            return index if calls_back and own else len(classes)
    return len(classes)


def _find_meaningful(classes: list[FrameClass]) -> int:
    """Find the frame that says what the stack is about: the innermost purpose, else the innermost
    call that is known at all.
    """
    purposes = [index for index, item in enumerate(classes) if item in PURPOSES]
    if purposes:
        return _settle_set_up(classes, purposes)
    known = [index for index, item in enumerate(classes) if item is not FrameClass.NONE]
    # A lock or a condition is how one waits for a thread.
    called = (index for index in known if classes[index] is not FrameClass.LOCK)
    outer = next(called, None)
    if outer is not None and classes[outer] is FrameClass.THREAD:
        return outer
    return known[0] if known else 0


def _settle_set_up(classes: list[FrameClass], purposes: list[int]) -> int:
    """Let the outer one count where set-up and collective are nested.

    Set-up ends in a barrier of its own, and a collective may connect to its peers when it is first
    used.
    """
    if classes[purposes[0]] not in WAITING_CLASSES:
        return purposes[0]
    outer = next(
        classes[index] for index in reversed(purposes) if classes[index] in WAITING_CLASSES
    )
    return classes.index(outer)


def _find_called(frames: tuple[Frame, ...], classes: list[FrameClass], index: int) -> Frame:
    """Find the call a reader knows: of set-up the outermost, of others the outermost in one file.

    A ring's barrier may be made of its all_reduce, and init_process_group of many small steps.
    """
    wanted, called = classes[index], frames[index]
    if wanted not in WAITING_CLASSES:
        return called
    for frame, frame_class in zip(frames[index + 1 :], classes[index + 1 :], strict=True):
        if frame_class is wanted and (wanted is FrameClass.INIT or frame.file == called.file):
            called = frame
    return called


def describe_place(frames: tuple[Frame, ...]) -> str | None:
    """Give where a stack is, as a verdict shows it: "data.py:88 in __next__"; null when empty."""
    reading = read_stack(frames)
    return None if reading is None else reading.where
