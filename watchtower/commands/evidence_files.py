"""Finds the files that a person gives to `watchtower diagnose`, and has each one read.

Folders are searched without following links. Files may come from any user: number, depth and the
bytes that are read have bounds.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from watchtower.commands.printing import clean
from watchtower.readers.files import read_file
from watchtower.readers.findings import FileFound

MAX_FILES = 65_536
"""Files of one diagnosis: 16,384 ranks with standard output, errors, records and stacks each."""

HEAD_BYTES = 4096
"""First bytes of a file in which a snapshot has the name of its format."""

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


def read_files(paths: Iterable[Path], root: Path | None = None) -> Iterator[FileFound]:
    """Yield what was found in each file. `root`: the folder that is not part of their names."""
    for path in paths:
        name = clean(str(path.relative_to(root) if root else path))
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
            with open(descriptor, "rb") as file:
                yield replace(read_file(name, file), name=name)
        except OSError as error:
            yield FileFound(name=name, form="", trouble=f"cannot be read: {error.strerror}")
