"""Finds the files that a person gives to `watchtower diagnose`, and has each one read.

Folders are searched without following links. Files may come from any user: number, depth and the
bytes that are read have bounds.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO

from watchtower.commands.client import ClientError
from watchtower.commands.printing import clean
from watchtower.commands.snapshot_files import FILES_CPU_S
from watchtower.readers.archives import read_all
from watchtower.readers.findings import FileFound

MAX_FILES = 65_536
"""Files of one diagnosis: 16,384 ranks with standard output, errors, records and stacks each."""

HEAD_BYTES = 4096
"""First bytes of a file in which a snapshot has the name of its format."""

BAR_WIDTH = 24
"""Characters of the bar of progress: with the words beside it, it fits into a line."""

MAX_DEPTH = 8
"""Folders inside of folders: torchrun makes four, job / run / attempt / rank."""


def find_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files of these paths and of the folders among them, in the order of names."""
    left = MAX_FILES
    for path in paths:
        for file in _search(path, MAX_DEPTH) if path.is_dir() else iter([path]):
            if left <= 0:
                return
            left -= 1
            yield file


def _search(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if depth > 0:
                yield from _search(Path(entry.path), depth - 1)
        elif entry.is_file(follow_symlinks=False):
            yield Path(entry.path)


def part_snapshots(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Return the snapshots of agents, and the other files."""
    snapshots: list[Path] = []
    others: list[Path] = []
    for path in paths:
        (snapshots if _is_snapshot(path) else others).append(path)
    return snapshots, others


def _is_snapshot(path: Path) -> bool:
    """Return whether a file begins as a snapshot does, is empty, or cannot be opened: what is wrong
    with it is explained where snapshots are read."""
    try:
        # Without O_NONBLOCK, opening a pipe that no process writes to never returns.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return True
        head = file.read(HEAD_BYTES)
    return not head.strip() or (head.startswith(b"{") and b'"watchtower-snapshot-' in head)


# --- reading --------------------------------------------------------------------------------------

LEAST_SHARED_BYTES = 64 << 20
"""Bytes from which on files are shared among processes: starting them takes as long as reading
this."""

MAX_WORKERS = 8
"""Processes that read: more wait for the disk."""


def read_files(
    paths: Iterable[Path], root: Path | None = None, terminal: TextIO | None = None
) -> Iterator[FileFound]:
    """Yield what was found in each file. `root`: the folder that is not part of their names;
    `terminal`: where the progress is written."""
    paths = list(paths)
    sizes = [_size_of(path) for path in paths]
    workers = min(_count_cpus(), MAX_WORKERS, len(paths))
    read = partial(_read_one, root)
    total = sum(sizes)
    with contextlib.ExitStack() as stack:
        found: Iterable[list[FileFound]] = map(read, paths)
        if workers > 1 and total >= LEAST_SHARED_BYTES:
            pool = stack.enter_context(_start_workers(workers))
            stack.callback(pool.shutdown, cancel_futures=True)
            found = pool.map(read, paths)
        stack.enter_context(_explained())
        done = 0
        for number, (each, size) in enumerate(zip(found, sizes, strict=True), start=1):
            done += size
            if terminal is not None and total >= LEAST_SHARED_BYTES:
                _show_progress(terminal, number, len(paths), done, total)
            yield from each


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise ClientError(
            "a process that read these files was ended by the system: it needed more than "
            f"{FILES_CPU_S:g} s of CPU time, or too much memory"
        ) from None


def _show_progress(terminal: TextIO, number: int, count: int, done: int, total: int) -> None:
    """Write over the last line how much is read; at the end, remove it."""
    filled = BAR_WIDTH * done // total
    bar = "#" * filled + "." * (BAR_WIDTH - filled)
    text = f"reading [{bar}] {number} of {count} files, {done >> 20} of {total >> 20} MB"
    terminal.write("\r\x1b[K" + (text if number < count else ""))
    terminal.flush()


def _start_workers(count: int) -> ProcessPoolExecutor:
    """Return processes that are started anew: a copy of this one would have its signal handlers."""
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _limit_worker)


def _limit_worker() -> None:
    """Let the system end a worker that needs too long, or that the user interrupts. Its limit of
    memory is inherited."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, FILES_CPU_S)


def _count_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _size_of(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _read_one(root: Path | None, path: Path) -> list[FileFound]:
    """Return what was found in a file; in an archive, for each of its files."""
    name = clean(str(path.relative_to(root) if root else path))
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            return [replace(each, name=clean(each.name)) for each in read_all(name, file)]
    except OSError as error:
        return [FileFound(name=name, form="", trouble=f"cannot be read: {error.strerror}")]
