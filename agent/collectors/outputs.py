"""Collector: how far the standard output and error of each rank had come at which time.

A log has no times that hold for all programs. But the kernel knows the position of each open file:
a line behind the position of a minute ago was written since then. So an error that a job survived
an hour ago is known to be old, and no file is opened before a job stalls.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from agent.procfs import CLOCK_TICKS_PER_S, Proc, parse_fields
from agent.ranks.guarded_reads import GuardedReads
from agent.ranks.owners import Owners

EVERY_S = 5.0
"""Seconds between two marks of a file. A stall is older when it is judged."""

MAX_MARKS = 64
"""Marks of one file: five minutes of one that is written to all the time. Then every second one is
dropped, so that the oldest ones are the coarsest."""

YOUNG_S = 15.0
"""Age of a process up to which what was in its file when it was found is of an earlier run."""

STREAMS = ("1", "2")
"""The descriptors of standard output and error."""

Key = tuple[int, int]


@dataclass(slots=True)
class Output:
    """A regular file to which a rank writes."""

    path: str
    """As the process sees it."""
    descriptor: str
    first: int = 0
    """Bytes that an earlier run has left in it."""
    marks: list[tuple[float, int]] = field(default_factory=list)
    """Times at which it had grown, and its length then."""

    def note(self, now: float, length: int) -> None:
        """Remember its length at a time."""
        if self.marks and length < self.marks[-1][1]:
            self.first, self.marks = 0, []  # it was truncated
        if not self.marks or length > self.marks[-1][1]:
            self.marks.append((now, length))
        if len(self.marks) > MAX_MARKS:
            del self.marks[1:-1:2]

    def age_s(self, offset: int, now: float) -> float:
        """Return the seconds since the byte at this offset was written, at least."""
        return next((max(0.0, now - at) for at, length in self.marks if length > offset), 0.0)


class Outputs:
    """Marks the outputs of all ranks of the node."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._reads = GuardedReads(Owners(proc).find_quietly)
        self._known: dict[Key, dict[str, Output]] = {}
        self._next_at = 0.0

    def note(self, keys: Iterable[Key], now: float) -> None:
        """Mark the outputs of these processes, if it is time; forget all others."""
        if now < self._next_at:
            return
        self._next_at = now + EVERY_S
        self._known = {key: self._mark(key, now) for key in keys}

    def of(self, key: Key) -> tuple[Output, ...]:
        """Return the outputs of a process that are regular files."""
        return tuple(self._known.get(key, {}).values())

    def _mark(self, key: Key, now: float) -> dict[str, Output]:
        known = self._known.get(key, {})
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - key[1] / CLOCK_TICKS_PER_S
        for descriptor in STREAMS:
            length, path = self._read(key[0], descriptor)
            if length < 0:
                continue  # it has ended, or its output is none of its files
            output = known.get(descriptor)
            if output is None or output.path != path:
                first = length if age_s < YOUNG_S else 0
                output = known[descriptor] = Output(path, descriptor, first)
            output.note(now, length)
        return known

    def _read(self, pid: int, descriptor: str) -> tuple[int, str]:
        """Return position and path of an open file; -1 if it is a pipe or cannot be read."""
        path = self._proc.link(pid, f"fd/{descriptor}")
        if not path.startswith("/") or path.startswith("/dev/"):
            return -1, ""
        name = f"fdinfo/{descriptor}"
        # A process may exchange the file for an epoll, whose text may hang.
        raw = self._reads.run(pid, lambda: self._proc.try_read(pid, name, 4096)) or b""
        position = parse_fields(raw).get("pos", "")
        return (int(position), path) if position.isdigit() else (-1, "")
