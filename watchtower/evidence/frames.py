"""Reads Python frames and stacks: what a rank is doing, and where in the user's own code.

The table of names is data (`facts/frame_classes.toml`). This module decides which frame of a stack
counts. One table (`TRAITS`) has what each class of stacks shows about a rank: code that has a
question about a class asks for a trait.

The stacks of many ranks are merged into one prefix tree whose nodes contain rank sets. Equal stacks
are grouped by their digest first. So the cost depends on the number of different stacks, and 16,384
ranks have only a few.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from watchtower.evidence.facts import TextPattern, part, read_facts, whole
from watchtower.wire.stacks import Frame, Stack


class FrameClass(Enum):
    """The work or wait of a rank with a frame of this class."""

    # Hash the singleton, in C. Enum hashes the name in Python, and a case hashes each many times.
    __hash__ = object.__hash__

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
    """It waits for a program that it started."""
    THREAD = "thread"
    """It waits for a thread that it started."""
    SERVER = "server"
    """It waits for clients."""
    USER = "user"
    NONE = "none"

    traits: ClassTraits
    """What a stack of this class shows about a rank: its row of `TRAITS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTraits:
    """What a stack of a class shows about a rank. In the table, all that is not named is False."""

    # Purposes

    shows_purpose: bool = False
    """The class describes the purpose of a call. It counts more than the classes of calls inside: a
    socket read inside all_reduce is a collective. If two such classes are nested, the inner
    counts."""
    is_busy_elsewhere: bool = False
    """The rank does not wait for a collective there, even while one that it started earlier is
    still under way."""
    is_work: bool = False
    """A rank there whose process tree computes is working, at any length."""
    may_be_saving: bool = False
    """The class does not contradict a phase in which the job itself reports that it saves."""

    # Waits for other ranks

    waits_for_ranks: bool = False
    """The rank waits for other ranks."""
    waits_if_asleep: bool = False
    """A sleeping rank waits for other ranks there, and a running rank works."""
    shows_wait_for_ranks: bool = False
    """The stack shows a wait for ranks. DDP's reducer waits inside of backward."""
    may_spin_in_wait: bool = False
    """A rank waits for others there, asleep or not, though no log names the call."""
    hides_any_call: bool = False
    """The line may make any call into C: the kernel's wait may be in that call, and a rank that
    uses a whole core is in a loop."""
    may_hide_collective: bool = False
    """The frames may hide a collective. A data loader or a checkpoint does not."""

    # Waits inside the process

    waits_for_thread: bool = False
    """The thread waits for another thread."""
    may_be_at_lock: bool = False
    """The class does not contradict a wait for a lock."""
    waits_by_lock: bool = False
    """The wait is implemented by a lock or a condition, which is an inner frame."""
    names_wait: bool = False
    """The frames name what a thread waits for. The kernel is asked about the main thread only."""
    is_often_idle: bool = False
    """A thread there most often waits for work."""
    is_own_code: bool = False
    """The stack waits or computes for a reason inside the program."""

    @property
    def may_be_collective(self) -> bool:
        """Whether the thread that trains may be in a recorded call itself."""
        return self.waits_for_ranks or self.waits_if_asleep


TRAITS: Mapping[FrameClass, ClassTraits] = {
    FrameClass.INIT: ClassTraits(
        shows_purpose=True,
        waits_for_ranks=True,
        shows_wait_for_ranks=True,
        may_spin_in_wait=True,
        names_wait=True,
    ),
    FrameClass.COLLECTIVE: ClassTraits(
        shows_purpose=True,
        waits_for_ranks=True,
        shows_wait_for_ranks=True,
        may_spin_in_wait=True,
        names_wait=True,
    ),
    FrameClass.DATALOADER: ClassTraits(shows_purpose=True, is_busy_elsewhere=True, is_work=True),
    FrameClass.CHECKPOINT: ClassTraits(shows_purpose=True, is_busy_elsewhere=True, is_work=True),
    FrameClass.COMPILE: ClassTraits(shows_purpose=True, is_busy_elsewhere=True, is_work=True),
    FrameClass.DEVICE: ClassTraits(
        waits_if_asleep=True, may_spin_in_wait=True, may_hide_collective=True
    ),
    FrameClass.BACKWARD: ClassTraits(
        waits_if_asleep=True, shows_wait_for_ranks=True, may_hide_collective=True
    ),
    FrameClass.OPTIMIZER: ClassTraits(
        hides_any_call=True, may_hide_collective=True, may_be_at_lock=True, may_be_saving=True
    ),
    FrameClass.LOCK: ClassTraits(
        may_hide_collective=True,
        waits_for_thread=True,
        may_be_at_lock=True,
        may_be_saving=True,
        is_often_idle=True,
        is_own_code=True,
    ),
    FrameClass.NETWORK: ClassTraits(
        # Not busy elsewhere: the other end of the socket may be a rank.
        is_work=True,
        may_be_saving=True,
        may_hide_collective=True,
        names_wait=True,
    ),
    FrameClass.CHILD: ClassTraits(
        is_busy_elsewhere=True, is_work=True, may_be_saving=True, names_wait=True, is_own_code=True
    ),
    FrameClass.THREAD: ClassTraits(
        may_hide_collective=True,
        waits_for_thread=True,
        waits_by_lock=True,
        names_wait=True,
        is_own_code=True,
    ),
    # A thread of a library that serves clients is not what another thread waits for, so its frames
    # do not name a wait.
    FrameClass.SERVER: ClassTraits(waits_by_lock=True),
    FrameClass.USER: ClassTraits(
        hides_any_call=True,
        may_hide_collective=True,
        may_be_at_lock=True,
        may_be_saving=True,
        is_own_code=True,
    ),
    FrameClass.NONE: ClassTraits(
        hides_any_call=True,
        may_hide_collective=True,
        may_be_at_lock=True,
        may_be_saving=True,
        is_often_idle=True,
    ),
}
for _frame_class, _row in TRAITS.items():
    _frame_class.traits = _row


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
    meets: bool
    """The rank looks for the others there."""
    calls_back: bool
    """The frame is in a library whose purpose is to run the user's code."""
    innermost: bool
    """It counts only if nothing but a wait in Python's library is inside: it also runs work."""

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
    """Innermost function of the user's own code. In a stack without one: that of the package that
    called what determines the class, or of Python itself."""
    at: str
    """Its position, such as "data.py:88"."""
    by_name: bool = False
    """The class depends only on names that the user chose."""
    by_library: bool = False
    """The class depends on the file of a known library."""
    meets: bool = False
    """Set-up has not reached the store that all ranks share."""

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
        meets=entry.get("meets", False),
        calls_back=entry.get("calls_back", False),
        innermost=entry.get("innermost", False),
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


def _classify(frames: tuple[Frame, ...]) -> list[FrameClass]:
    """Return the classes of the frames of a stack, innermost first."""
    classes: list[FrameClass] = []
    waits = True
    for frame in frames:
        pattern, found = _pattern_of(frame), classify_frame(frame)
        if pattern is not None and pattern.innermost and not waits:
            found = FrameClass.NONE
        classes.append(found)
        in_python = frame.library and is_of_python(frame.file)
        waits = waits and in_python and found in (FrameClass.LOCK, FrameClass.NONE)
    return classes


def read_stack(frames: tuple[Frame, ...]) -> StackReading | None:
    """Return the reading of a stack, innermost frame first; None without frames."""
    if not frames:
        return None
    classes = _classify(frames)
    purposes = _find_purposes(frames, classes)
    index = _choose_purpose(classes, purposes) if purposes else _find_known(classes)
    meant = _find_called(frames, classes, purposes, index)
    shown = _find_shown(frames, index)
    alike = [frame for frame, item in zip(frames, classes, strict=True) if item is classes[index]]
    return StackReading(
        frame_class=classes[index],
        what=last_component(meant.function),
        what_at=name_line(meant),
        function=last_component(shown.function),
        at=name_line(shown),
        by_name=all(pattern.by_name for frame in alike if (pattern := _pattern_of(frame))),
        by_library=any(frame.library and _is_known_by_file(frame) for frame in alike),
        meets=classes[index] is FrameClass.INIT and _meets(frames[purposes[0]]),
    )


def _find_shown(frames: tuple[Frame, ...], index: int) -> Frame:
    """Return the frame whose place people are shown."""
    own = next((frame for frame in frames if not frame.library), None)
    packages = (frame for frame in frames[index:] if not is_of_python(frame.file))
    return own or next(packages, frames[index])


def is_of_python(file: str) -> bool:
    """Return whether a file of a library is of Python's standard library."""
    first, _, rest = file.partition("/")
    name = first if rest else first.removesuffix(".py")
    return file.startswith("<") or name in sys.stdlib_module_names


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


def _meets(frame: Frame) -> bool:
    pattern = _pattern_of(frame)
    return pattern is not None and pattern.meets


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StackNode:
    """One frame of the tree, and the ranks whose stacks contain it."""

    frame: Frame | None
    """None at the root."""
    ranks: frozenset[int]
    """Ranks whose stack contains this node."""
    children: tuple[StackNode, ...] = ()
    """Frames called from here, the one with the most ranks first."""

    @property
    def ending(self) -> frozenset[int]:
        """Ranks whose innermost frame this is."""
        return self.ranks.difference(*(child.ranks for child in self.children))


@dataclass(frozen=True, slots=True, kw_only=True)
class StackClass:
    """Ranks with the same stack."""

    ranks: frozenset[int]
    frames: tuple[Frame, ...]
    """Innermost first."""


def merge_stacks(stacks: Mapping[int, Stack]) -> StackNode:
    """Return the tree of these ranks' stacks. `stacks` is by rank."""
    return _build(None, [(item.ranks, item.frames[::-1]) for item in group_stacks(stacks)])


def group_stacks(stacks: Mapping[int, Stack]) -> tuple[StackClass, ...]:
    """Return the classes of ranks with equal stacks, the largest first, then by lowest rank."""
    members: dict[str, set[int]] = {}
    frames: dict[str, tuple[Frame, ...]] = {}
    for rank, stack in stacks.items():
        members.setdefault(stack.digest, set()).add(rank)
        frames[stack.digest] = stack.frames
    classes = [
        StackClass(ranks=frozenset(ranks), frames=frames[digest])
        for digest, ranks in members.items()
    ]
    return tuple(sorted(classes, key=lambda item: (-len(item.ranks), min(item.ranks))))


def _build(frame: Frame | None, paths: list[tuple[frozenset[int], tuple[Frame, ...]]]) -> StackNode:
    below: dict[Frame, list[tuple[frozenset[int], tuple[Frame, ...]]]] = {}
    for ranks, frames in paths:
        if frames:
            below.setdefault(frames[0], []).append((ranks, frames[1:]))
    children = [_build(child, rest) for child, rest in below.items()]
    children.sort(key=lambda node: (-len(node.ranks), min(node.ranks)))
    return StackNode(
        frame=frame,
        ranks=frozenset().union(*(ranks for ranks, _ in paths)),
        children=tuple(children),
    )


def describe_frames(frames: tuple[Frame, ...], limit: int = 6) -> str:
    """Return a stack as one line, innermost first: "__next__ data.py:88 < train train.py:20"."""
    shown = [f"{last_component(frame.function)} {name_line(frame)}" for frame in frames[:limit]]
    return " < ".join([*shown, "…"] if len(frames) > limit else shown)
