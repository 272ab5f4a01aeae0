"""Dumper: the loops around the lines of the user's own frames, told by the source on the node.

Two ranks in one function can be compared then: who is ahead when both are in the same loop? Nothing
of the source leaves the node but line numbers. Files are read by a child process, because one on a
network file system may never answer.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from agent.dumpers.loop_child import BEGUN
from agent.dumpers.tool_process import ChildRunner
from agent.procfs import CLOCK_TICKS_PER_S, Proc
from watchtower.wire.bounds import MAX_LOOPS
from watchtower.wire.stacks import Frame, Stack

SOURCE_DEADLINE_S = 2.0
"""For all source files of a round; reading some takes 30 ms, and one that hangs never ends."""

MAX_SOURCES_PER_ROUND = 64
"""Files read in one round: a stack has a handful of the user's own, and ranks have the same."""

MAX_LINES_PER_SOURCE = 256
"""Lines checked in one file at once."""

MAX_KNOWN_SOURCES = 1024
"""Files of living processes whose lines are remembered, so that the second round reads nothing."""

MAX_KNOWN_LINES = 4096
"""Of one of them: who is seen in more lines than that makes them up."""

SOURCE_CHANGED_SLACK_S = 1.0
"""A file that changed later than this after its process began is not what the process runs; a
process begins with a hundredth of a second's accuracy, and loads its files after that."""

MAX_SOURCE_OUTPUT_BYTES = 1 << 20
"""Line numbers of one round: 64 files of 256 lines with eight loops are 0.9 MB."""

log = logging.getLogger(__name__)

_PACKAGES = str(Path(__file__).parents[2])
_CHILD = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from agent.dumpers.loop_child import main; main()"
)
"""With -I and -S nothing but the standard library is found before our own package."""

_UNNAMED = ("<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Functions whose lines lie within those of another one."""


class _Answer(msgspec.Struct):
    loops: list[list[int] | None] | None = None
    changed_s: float = 0.0


_DECODER = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True, slots=True)
class _File:
    """A source file as one process sees it."""

    pid: int
    start_time: int
    path: str


@dataclass(slots=True)
class _Known:
    """What a file said of the lines it was asked for; once read it is not read again for them.

    The process runs what it loaded, so that this holds as long as the process lives.
    """

    usable: bool = True
    loops: dict[int, tuple[int, ...] | None] = field(default_factory=dict)


class SourceLoops:
    """Fills `Frame.loops`, for several dumps at the same time if need be."""

    def __init__(self, proc: Proc, runner: ChildRunner) -> None:
        """`runner` must be one of its own: children that hang here must not stop py-spy."""
        self._proc, self._runner = proc, runner
        self._known: OrderedDict[_File, _Known] = OrderedDict()
        self._lock = threading.Lock()

    def fill(
        self, stacks: Sequence[tuple[Stack, int]], deadline: float, owner: str = ""
    ) -> tuple[Stack, ...]:
        """Return the stacks with the loops that could be found; each comes with its process. All
        processes are of this owner."""
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
        """Ask for what is not known yet, all files of a round in one child."""
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
        try:
            began, answers = self._ask(asked, left, owner)
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("no source is read, because the child for it failed: %s", error)
            return
        now = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
        with self._lock:
            for (file, asked_lines), answer in zip(asked, answers, strict=False):
                self._keep(file, asked_lines, answer, now)
            if began and len(answers) < len(asked):
                # It hung over this file; those after it were not touched, and are asked again.
                self._known[asked[len(answers)][0]] = _Known(usable=False)
            while len(self._known) > MAX_KNOWN_SOURCES:
                self._known.popitem(last=False)

    def _ask(
        self, asked: Iterable[tuple[_File, list[int]]], left_s: float, owner: str
    ) -> tuple[bool, list[_Answer]]:
        """Return whether the child got as far as the first file, and its answers."""
        questions = [
            json.dumps(
                {
                    "process": f"{self._proc.path}/{file.pid}",
                    "path": file.path,
                    "lines": lines,
                }
            )
            for file, lines in asked
        ]
        command = [sys.executable, "-I", "-S", "-c", _CHILD, _PACKAGES, *questions]
        outcome = self._runner.run(command, left_s, owner)
        if outcome.errors:
            said = outcome.errors.decode("utf-8", "replace").strip()
            log.warning("the child that reads source says: %s", said.rpartition("\n")[2])
        began, *answers = outcome.output.split(b"\n")
        return began == BEGUN.encode(), [_DECODER.decode(line) for line in answers[:-1]]

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
    """Say whether the lines around a frame's are those of its function, in a file of the user's."""
    name = frame.function.rpartition(".")[2]
    return (
        not frame.library and frame.file.startswith("/") and frame.line > 0 and name not in _UNNAMED
    )
