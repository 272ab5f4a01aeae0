"""Detects that files were changed or replaced, with one stat(2) per file."""

from __future__ import annotations

import os
from collections.abc import Iterable

FileState = tuple[int, int, int] | None


class FileWatch:
    """Compares files with their state at the last call."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(paths)
        self._states = self._read()

    def has_changed(self) -> bool:
        """Return whether a file has changed since the last call."""
        before, self._states = self._states, self._read()
        return before != self._states

    def _read(self) -> tuple[FileState, ...]:
        return tuple(map(_state_of, self._paths))


def _state_of(path: str) -> FileState:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
