"""Dumper: the loops around the lines of the user's own frames, from the source on the node.

With them, two ranks in one function can be compared: which one is ahead if both are in the same
loop? Only line numbers of the source leave the node. A child process reads the files, because a
file on a network file system may never answer.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from agent.children import ChildRunner, Program
from agent.procfs import CLOCK_TICKS_PER_S, Proc
from watchtower.wire.bounds import MAX_LOOPS
from watchtower.wire.stacks import Frame, Stack

SOURCE_DEADLINE_S = 2.0
"""Seconds for all source files of a round. Reading some takes 30 ms; one that hangs never ends."""

MAX_SOURCES_PER_ROUND = 64
"""Files read in one round. A stack has a handful of the user's own files, equal on all ranks."""

MAX_LINES_PER_SOURCE = 256
"""Lines checked in one file at once."""

MAX_KNOWN_SOURCES = 1024
"""Files of living processes whose lines are remembered, so that the second round reads nothing."""

MAX_KNOWN_LINES = 4096
"""Lines remembered of one file. A process with more lines forges them."""

SOURCE_CHANGED_SLACK_S = 1.0
"""Seconds after the start of a process. A file that changed later is not what the process runs. The
start time is accurate to 10 ms, and files are loaded after it.
"""

MAX_SOURCE_OUTPUT_BYTES = 1 << 20
"""Bytes of line numbers in one round. 64 files of 256 lines with eight loops are 0.9 MB."""

log = logging.getLogger(__name__)

_UNNAMED = ("<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Functions whose lines are inside those of another function."""


class _Answer(msgspec.Struct):
    loops: list[list[int] | None] | None = None
    changed_s: float = 0.0


SOURCE_CHILD = Program(
    name="agent.dumpers.source_child",
    answers=msgspec.json.Decoder(_Answer),
    purpose="cannot read source files",
    max_output_bytes=MAX_SOURCE_OUTPUT_BYTES,
)


@dataclass(frozen=True, slots=True)
class _File:
    """A source file as one process sees it."""

    pid: int
    start_time: int
    path: str


@dataclass(slots=True)
class _Known:
    """The loops of the lines asked for in one file. These lines are not read again.

    The process runs what it loaded, so this is valid as long as the process lives.
    """

    usable: bool = True
    loops: dict[int, tuple[int, ...] | None] = field(default_factory=dict)


class SourceLoops:
    """Fills `Frame.loops`, for several dumps at the same time if needed."""

    def __init__(self, proc: Proc, runner: ChildRunner) -> None:
        self._proc, self._runner = proc, runner
        self._known: OrderedDict[_File, _Known] = OrderedDict()
        self._lock = threading.Lock()

    def fill(
        self, stacks: Sequence[tuple[Stack, int]], deadline: float, owner: str = ""
    ) -> tuple[Stack, ...]:
        """Return the stacks with the loops that were found. Each stack comes with its pid.

        All processes belong to this owner.
        """
        started = {pid: stat.start_time for _, pid in stacks if (stat := self._proc.stat(pid))}
        wanted: dict[_File, set[int]] = {}
        for stack, pid in stacks:
            for frame in stack.frames:
                if pid in started and has_own_lines(frame):
                    file = _File(pid, started[pid], frame.file)
                    wanted.setdefault(file, set()).add(frame.line)
        self._learn(wanted, deadline, owner)
        return tuple(self._fill_stack(stack, pid, started.get(pid)) for stack, pid in stacks)

    def _fill_stack(self, stack: Stack, pid: int, start_time: int | None) -> Stack:
        if start_time is None:
            return stack
        frames = (self._fill_frame(frame, pid, start_time) for frame in stack.frames)
        return replace(stack, frames=tuple(frames))

    def _fill_frame(self, frame: Frame, pid: int, start_time: int) -> Frame:
        if not has_own_lines(frame):
            return frame
        with self._lock:
            known = self._known.get(_File(pid, start_time, frame.file))
            loops = known.loops.get(frame.line) if known is not None else None
        return frame if loops is None else replace(frame, loops=loops, has_source=True)

    def _learn(self, wanted: dict[_File, set[int]], deadline: float, owner: str) -> None:
        """Ask for the lines not known yet: all files of a round in one child."""
        asked: list[tuple[_File, list[int]]] = []
        with self._lock:
            for file, lines in wanted.items():
                known = self._known.get(file, _Known())
                new = sorted(lines - known.loops.keys())[:MAX_LINES_PER_SOURCE]
                if known.usable and new and len(asked) < MAX_SOURCES_PER_ROUND:
                    asked.append((file, new))
        left = min(SOURCE_DEADLINE_S, deadline - time.monotonic())
        if not asked or left <= 0:
            return
        questions = [
            json.dumps({"process": f"{self._proc.path}/{file.pid}", "path": file.path, "lines": at})
            for file, at in asked
        ]
        found = self._runner.ask(SOURCE_CHILD, questions, left, owner).found
        answers = found[1:]  # the first one reports the start
        now = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
        with self._lock:
            for (file, asked_lines), answer in zip(asked, answers, strict=False):
                self._keep(file, asked_lines, answer, now)
            if found and len(answers) < len(asked):
                # The child hung in this file. Later files were not opened, and are asked for again.
                self._known[asked[len(answers)][0]] = _Known(usable=False)
            while len(self._known) > MAX_KNOWN_SOURCES:
                self._known.popitem(last=False)

    def _keep(
        self, file: _File, lines: list[int], answer: _Answer, now: tuple[float, float]
    ) -> None:
        wall_s, boot_s = now
        started_s = wall_s - (boot_s - file.start_time / CLOCK_TICKS_PER_S)
        changed = answer.changed_s > started_s + SOURCE_CHANGED_SLACK_S
        if answer.loops is None or changed or len(answer.loops) != len(lines):
            self._known[file] = _Known(usable=False)
            return
        known = self._known.setdefault(file, _Known())
        if len(known.loops) > MAX_KNOWN_LINES:
            known.loops.clear()
        for line, loops in zip(lines, answer.loops, strict=True):
            known.loops[line] = tuple(loops[:MAX_LOOPS]) if loops is not None else None


def has_own_lines(frame: Frame) -> bool:
    """Return whether the frame is in a file of the user, and the lines around it are its
    function's.
    """
    name = frame.function.rpartition(".")[2]
    return (
        not frame.library and frame.file.startswith("/") and frame.line > 0 and name not in _UNNAMED
    )
