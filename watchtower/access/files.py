"""Notices that files were changed or replaced, at the cost of one stat(2) each."""

from __future__ import annotations

import os
from collections.abc import Iterable

Look = tuple[int, int, int] | None


class FileWatch:
    """Compares files with how they looked at the last call."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(paths)
        self._looks = self._look()

    def has_changed(self) -> bool:
        """Whether a file looks different from the last time this was asked."""
        before, self._looks = self._looks, self._look()
        return before != self._looks

    def _look(self) -> tuple[Look, ...]:
        return tuple(map(_look_at, self._paths))


def _look_at(path: str) -> Look:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
