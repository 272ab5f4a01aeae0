"""How far the standard output and error of each rank had come at which time.

A log has no times that hold for all programs. But the kernel knows the position of each open file:
a line behind the position of a minute ago was written since then. So an error that a job survived
an hour ago is known to be old, and no file is opened before a job stalls.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from agent.dumpers.user_files import NotReadable, check_readable, parse_rights, read_table
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


KEPT_S = 60.0
"""Seconds for which the files of a process that has ended are kept: they are read at its end."""

ERROR = "2"
"""The descriptor of standard error, to which watchdogs write."""


class Held:
    """A descriptor of ours for the file that a process has open. It cannot be read by itself
    (O_PATH), and waits for no file system."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


@dataclass(slots=True)
class Output:
    """A regular file to which a rank writes."""

    path: str
    """As the process sees it."""
    held: Held
    file: tuple[int, int]
    """Device and inode."""
    is_error: bool
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


@dataclass(slots=True)
class _Files:
    seen_at: float
    outputs: dict[str, Output] = field(default_factory=dict)
    """By the descriptor of the process."""


class Outputs:
    """Marks the outputs of all ranks of the node."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._reads = GuardedReads(Owners(proc).find_quietly)
        self._known: dict[Key, _Files] = {}
        self._next_at = 0.0

    def note(self, keys: Iterable[Key], now: float) -> None:
        """Mark the outputs of these processes: of new ones now, of others if it is time. Those that
        are not among them are forgotten soon."""
        is_time = now >= self._next_at
        self._next_at = now + EVERY_S if is_time else self._next_at
        known = dict(self._known)
        for key in keys:
            is_new = key not in known
            files = known.setdefault(key, _Files(now))
            files.seen_at = now
            if is_time or is_new:
                self._mark(key, files, now)
        self._known = {key: each for key, each in known.items() if now - each.seen_at < KEPT_S}

    def of(self, key: Key) -> tuple[Output, ...]:
        """Return the outputs of a process that are regular files, each file once."""
        files = self._known.get(key)
        found = {each.file: each for each in (files.outputs.values() if files else ())}
        return tuple(found.values())

    def _mark(self, key: Key, files: _Files, now: float) -> None:
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - key[1] / CLOCK_TICKS_PER_S
        for descriptor in STREAMS:
            path = self._proc.link(key[0], f"fd/{descriptor}")
            if not path.startswith("/") or path.startswith("/dev/"):
                continue  # a pipe or a terminal; or the process has ended
            output = files.outputs.get(descriptor)
            if output is not None and output.path == path:
                length = self._reads.run(key[0], partial(self._position, key[0], descriptor))
            else:
                output, length = self._open(key[0], descriptor, path)
            if output is None or length is None:
                continue
            if not output.marks and age_s < YOUNG_S:
                output.first = length
            output.note(now, length)
            files.outputs[descriptor] = output

    def _open(self, pid: int, descriptor: str, path: str) -> tuple[Output | None, int | None]:
        """Return a file that is opened for the first time, and its length. A file that may not be
        read is asked for again: an owner can change."""
        found = self._reads.run(pid, partial(self._hold, pid, descriptor))
        if found is None:
            return None, None
        held, status, length = found
        file = (status.st_dev, status.st_ino)
        return Output(path, held, file, descriptor == ERROR), length

    def _hold(self, pid: int, descriptor: str) -> tuple[Held, os.stat_result, int | None] | None:
        """Hold a file of a process, if the process may read it and its user owns it."""
        process = self._proc.file(pid, "").rstrip("/")
        try:
            rights = parse_rights(read_table(f"{process}/status"))
            held = Held(os.open(f"{process}/fd/{descriptor}", os.O_PATH | os.O_CLOEXEC))
            status = check_readable(held.number, process, rights)
        except (OSError, ValueError, NotReadable):
            return None
        is_own = status.st_uid == rights.user
        return (held, status, self._position(pid, descriptor)) if is_own else None

    def _position(self, pid: int, descriptor: str) -> int | None:
        """Return the position of an open file. A process may exchange the file for an epoll, whose
        text may hang."""
        raw = self._proc.try_read(pid, f"fdinfo/{descriptor}", 4096)
        position = parse_fields(raw).get("pos", "")
        return int(position) if position.isdigit() else None
