"""Opens a path as another process sees it, without ever leaving that process's root.

The kernel follows an absolute link under /proc/PID/root from the root of whoever follows it: in a
container that would be the wrong file, and it could be one that its maker may not open. So each
part of the path is opened on its own, and links are followed here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

MAX_LINKS = 40
"""As many as the kernel follows in one path."""

MAX_PARTS = 256
"""Names in a path, those of the links in it included."""

_WALK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_in_root(
    root: str, path: str, check: Callable[[int], None] = lambda descriptor: None
) -> int:
    """Return a descriptor with O_PATH for `path` under the folder `root`.

    `check` is called with each folder before a name in it is opened: what it raises ends the
    walk. Raises OSError for what cannot be opened, ValueError for a path that is not absolute, that
    goes up, or that has too many parts.
    """
    parts = _parts(path)
    if not path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError("not an absolute path without `..`")
    walk = _Walk(root, check)
    try:
        walk.go(parts)
        return os.dup(walk.descriptors[-1])
    finally:
        walk.close(all_but=0)


class _Walk:
    """A way down from a root: what it came through is open, so that it can go back up."""

    def __init__(self, root: str, check: Callable[[int], None]) -> None:
        self._check = check
        self.descriptors = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]

    def go(self, waiting: list[str]) -> None:
        """Go to the end of a path, the links in it included."""
        links = parts = 0
        while waiting:
            name = waiting.pop()
            parts += 1
            if name == "..":  # only a link has it; the root is its own parent
                self.close(all_but=max(1, len(self.descriptors) - 1))
                continue
            if target := self._open_name(name):
                links += 1
                waiting.extend(_parts(target))
            if links > MAX_LINKS or parts > MAX_PARTS:
                raise ValueError("a path of too many parts or links")

    def _open_name(self, name: str) -> str:
        """Open one name; of a link, return its target and go back to where that counts from."""
        self._check(self.descriptors[-1])
        found = os.open(name, _WALK, dir_fd=self.descriptors[-1])
        self.descriptors.append(found)
        if not stat.S_ISLNK(os.fstat(found).st_mode):
            return ""
        target = os.readlink("", dir_fd=found)
        self.close(all_but=1 if target.startswith("/") else len(self.descriptors) - 1)
        return target

    def close(self, *, all_but: int) -> None:
        """Close all but the first few."""
        while len(self.descriptors) > all_but:
            os.close(self.descriptors.pop())


def _parts(path: str) -> list[str]:
    """Return the names of a path, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
