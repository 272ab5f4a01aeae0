"""How far the standard output and error of each rank had come at which time, and its NCCL log.

A log has no times that hold for all programs. But the kernel knows the position of each open file:
a line behind the position of a minute ago was written since then. So an error that a job survived
an hour ago is known to be old, and no file is opened before a job stalls.

The file of `NCCL_DEBUG_FILE` is one that the process has open, so it is held in the same way. The
dumps of torch's flight recorder are only written when a call has timed out: they are searched where
the environment of the rank names them, as the process sees its files.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple

from agent.dumpers.user_files import (
    SEARCH,
    NotReadable,
    check_readable,
    open_in_root,
    parse_rights,
    read_table,
)
from agent.procfs import CLOCK_TICKS_PER_S, Proc, parse_environ, parse_fields
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


NCCL_LOG = "NCCL_DEBUG_FILE"
RECORDS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Variables with the path of a file; torch adds the rank to those of `RECORDS`."""

MAX_DESCRIPTORS = 1024
"""Descriptors of a process among which its NCCL log is searched. Ranks have some hundreds."""

RECORDS_AGE_S = 120.0
"""Age up to which a dump of the flight recorder is about the present stall: torch ends the process
a minute after it has written one."""

_NCCL_FIELD = re.compile(r"%[hp]")


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
    is_records: bool = False
    """It is a dump of torch's flight recorder."""
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


class _Named(NamedTuple):
    """The files that the environment of a process names."""

    nccl_log: tuple[str, ...] = ()
    """The parts of its name between which NCCL puts host and pid; empty without such a log."""
    records: tuple[str, ...] = ()


@dataclass(slots=True)
class _Files:
    seen_at: float
    outputs: dict[str, Output] = field(default_factory=dict)
    """By the descriptor of the process, or by the variable that names the file."""
    named: _Named | None = None
    """None until its environment was read."""


class Outputs:
    """Marks the outputs of all ranks of the node."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._reads = GuardedReads(Owners(proc).find_quietly)
        self._known: dict[Key, _Files] = {}
        self._next_at = -math.inf

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
        if files.named is None:
            files.named = self._reads.run(key[0], partial(self._read_names, key[0]))
        named = files.named or _Named()
        for path in named.records:
            self._reads.run(key[0], partial(self._find_records, key[0], path, files, now, age_s))
        log = self._find_nccl_log(key[0], named.nccl_log, files) if named.nccl_log else ()
        for descriptor in (*STREAMS, *log):
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
        """Hold a file that a process has open, if the process may read it and its user owns it."""
        found = self._hold_checked(pid, descriptor)
        return (*found, self._position(pid, descriptor)) if found else None

    def _hold_checked(self, pid: int, name: str) -> tuple[Held, os.stat_result] | None:
        """Hold a file by a descriptor of a process, or by a path as the process sees it."""
        process = self._proc.file(pid, "").rstrip("/")
        try:
            rights = parse_rights(read_table(f"{process}/status"))

            def check(folder: int) -> None:
                if not rights.has(os.fstat(folder), SEARCH):
                    raise NotReadable

            if name.startswith("/"):
                held = Held(open_in_root(f"{process}/root", name, check))
            else:
                held = Held(os.open(f"{process}/fd/{name}", os.O_PATH | os.O_CLOEXEC))
            status = check_readable(held.number, process, rights)
        except (OSError, ValueError, NotReadable):
            return None
        return (held, status) if status.st_uid == rights.user else None

    def _read_names(self, pid: int) -> _Named | None:
        """Return the files that the environment of a process names; None while it has none."""
        variables = parse_environ(self._proc.try_read(pid, "environ"))
        if not variables:
            return None
        rank, log = variables.get("RANK", ""), variables.get(NCCL_LOG, "")
        paths = [f"{variables[name]}{rank}" for name in RECORDS if variables.get(name) and rank]
        return _Named(
            tuple(_NCCL_FIELD.split(os.path.basename(log))) if log.startswith("/") else (),
            tuple(path for path in paths if path.startswith("/")),
        )

    def _find_nccl_log(self, pid: int, parts: Sequence[str], files: _Files) -> tuple[str, ...]:
        """Return the descriptor of the NCCL log of a process."""
        known = [each for each in files.outputs if each not in STREAMS and each.isdigit()]
        if known:
            return tuple(known)
        found = (each for each in self._descriptors(pid) if each not in STREAMS)
        links = ((each, self._proc.link(pid, f"fd/{each}")) for each in found)
        log = (each for each, path in links if _fits(os.path.basename(path), parts))
        return tuple(islice(log, 1))

    def _descriptors(self, pid: int) -> Iterator[str]:
        try:
            with os.scandir(self._proc.file(pid, "fd")) as entries:
                yield from islice((entry.name for entry in entries), MAX_DESCRIPTORS)
        except OSError:
            return

    def _find_records(
        self, pid: int, path: str, files: _Files, now: float, process_age_s: float
    ) -> None:
        """Hold a dump of the flight recorder, if this process can have written it."""
        found = self._hold_checked(pid, path)
        if found is None:
            return
        held, status = found
        age_s = max(0.0, time.time() - status.st_mtime)
        if age_s < process_age_s:
            marks = [(now - age_s, status.st_size)]
            file = (status.st_dev, status.st_ino)
            files.outputs[path] = Output(
                path, held, file, is_error=False, is_records=True, marks=marks
            )

    def _position(self, pid: int, descriptor: str) -> int | None:
        """Return the position of an open file. A process may exchange the file for an epoll, whose
        text may hang."""
        raw = self._proc.try_read(pid, f"fdinfo/{descriptor}", 4096)
        position = parse_fields(raw).get("pos", "")
        return int(position) if position.isdigit() else None


def _fits(name: str, parts: Sequence[str]) -> bool:
    """Return whether a name has these parts in their order, with anything between them: those of
    "nccl.%h.%p.log" are between its host and its pid."""
    first, *others = parts
    if not name.startswith(first) or (not others and name != first):
        return False
    at = len(first)
    for part in others[:-1]:
        found = name.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return not others or (name.endswith(others[-1]) and len(name) - len(others[-1]) >= at)
