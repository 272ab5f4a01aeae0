"""Reads the files of snapshots. They may come from any user: every read is bounded, and so
are the CPU time and the memory of the command."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import BinaryIO

import msgspec

from watchtower.commands.client import ClientError
from watchtower.commands.printing import clean
from watchtower.wire.snapshot import (
    MAX_SNAPSHOT_BYTES,
    SNAPSHOT_FORMAT,
    Snapshot,
    SnapshotHead,
)

MAX_TOTAL_BYTES = 256 * 1024 * 1024
"""Bytes of all snapshots together: 2048 nodes of eight ranks have a quarter of this."""

MAX_SNAPSHOTS = 16_384
"""Snapshots in one diagnosis, one a node."""

STDIN = Path("-")

BEGINNING = b'{"format":"watchtower-snapshot-'
"""How an agent begins a line."""

_HEADS = msgspec.json.Decoder(SnapshotHead)
_SNAPSHOTS = msgspec.json.Decoder(Snapshot)


@dataclass(frozen=True, slots=True)
class FileSnapshot:
    """A snapshot, and the name of its file for messages."""

    name: str
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """The snapshots of all files, and a sentence for each file that cannot be used."""

    found: list[FileSnapshot] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)


class UnusableFileError(Exception):
    """A file that cannot be used beside others that can. The text names it."""


def read_snapshots(paths: Iterable[Path]) -> SnapshotFiles:
    """Read all files; one line is one snapshot. Raises ClientError if they are too large.

    The rest of a file with a line that is not a snapshot is not read. The other files are: the
    file of a node that cannot be reached is empty, and then the others are needed most.
    """
    files = SnapshotFiles()
    total = 0
    for path in paths:
        try:
            for number, line in enumerate(_lines(path), start=1):
                name = clean(str(path)) if number == 1 else f"{clean(str(path))}, line {number}"
                total += len(line)
                if total > MAX_TOTAL_BYTES or len(files.found) >= MAX_SNAPSHOTS:
                    raise ClientError(
                        f"{name}: too much to diagnose at once: the limits are {MAX_SNAPSHOTS} "
                        f"snapshots and {MAX_TOTAL_BYTES >> 20} MB"
                    )
                files.found.append(FileSnapshot(name, _decode(name, line)))
        except UnusableFileError as error:
            files.unusable.append(str(error))
        except OSError as error:
            files.unusable.append(f"cannot open {clean(str(path))!r}: {error.strerror}")
    return files


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a regular file or of standard input. Empty lines are left out."""
    name = clean(str(path))
    if path == STDIN:
        with open(os.dup(0), "rb") as file:
            yield from _split("standard input", file)
        return
    # Without O_NONBLOCK, opening a pipe that no process writes to never returns.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        raise UnusableFileError(
            f"cannot open {name}: permission denied. Only the user who took a snapshot may read "
            "it: run this command as that user, or with sudo"
        ) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnusableFileError(f"{name} is not a file")
    with open(descriptor, "rb") as file:
        yield from _split(name, file)


def _split(name: str, file: BinaryIO) -> Iterator[bytes]:
    has_any = False
    while line := file.readline(MAX_SNAPSHOT_BYTES + 1):
        if len(line) > MAX_SNAPSHOT_BYTES:
            raise UnusableFileError(
                f"{name} has a line of more than {MAX_SNAPSHOT_BYTES >> 20} MB: it is not a "
                "snapshot of watchtower-agent"
            )
        if not line.isspace():
            has_any = True
            yield line
    if not has_any:
        raise UnusableFileError(f"{name} is empty: no snapshot was written to it")


def _decode(name: str, line: bytes) -> Snapshot:
    try:
        head = _HEADS.decode(line)
        if head.format != SNAPSHOT_FORMAT:
            if head.format.startswith("watchtower-snapshot-"):
                raise UnusableFileError(
                    f"{name} was written by another release of watchtower-agent (format "
                    f"{clean(head.format[:64])}): use the same release of watchtower"
                )
            raise UnusableFileError(f"{name} is not a snapshot of watchtower-agent")
        return _SNAPSHOTS.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if line.startswith(BEGINNING) and not line.rstrip().endswith(b"}"):
            raise UnusableFileError(
                f"{name} is cut off: the snapshot was not written or copied completely"
            ) from None
        raise UnusableFileError(
            f"{name} is not a snapshot of watchtower-agent: {clean(str(error)[:240])}"
        ) from None


CPU_S = 60.0
"""CPU seconds of one command. The snapshots of 16,384 ranks need some seconds."""

FILES_CPU_S = 900.0
"""CPU seconds of one command that searches logs: 512 logs of 10 MB need about 60."""

MEMORY_BYTES = 4 << 30
"""Private memory of one command. Snapshots of 256 MB need less than 3 GB."""


class _TimeUp(BaseException):
    """The CPU time is used up. Not an Exception, so that no rule of a diagnosis catches it."""


@contextlib.contextmanager
def bounded_run(what: str, cpu_s: float | None = None) -> Iterator[None]:
    """Raise ClientError if the block needs too much CPU time or memory. For the main thread."""
    cpu_s = CPU_S if cpu_s is None else cpu_s
    old = resource.getrlimit(resource.RLIMIT_DATA)
    before = signal.signal(signal.SIGPROF, _end)
    try:
        soft = MEMORY_BYTES if old[0] == resource.RLIM_INFINITY else min(old[0], MEMORY_BYTES)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, old[1]))
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        yield
    except _TimeUp:
        raise ClientError(f"{what} need more than {cpu_s:g} s of CPU time") from None
    except MemoryError:
        raise ClientError(f"{what} need more than {MEMORY_BYTES >> 30} GB of memory") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_DATA, old)


def _end(_number: int, _frame: FrameType | None) -> None:
    raise _TimeUp
