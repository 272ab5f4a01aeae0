"""Opens a path as another process sees it, without ever leaving that process's root.

Under /proc/PID/root the kernel resolves an absolute link from the root of the calling process. In a
container this would be the wrong file, perhaps one that the owner of the link may not open.
Therefore each part of the path is opened on its own, and links are resolved here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

MAX_LINKS = 40
"""Links followed in one path, the same number as in the kernel."""

MAX_PARTS = 256
"""Names in a path, including the names in its links."""

_WALK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_in_root(
    root: str, path: str, check: Callable[[int], None] = lambda descriptor: None
) -> int:
    """Return an O_PATH descriptor for `path` under the folder `root`.

    `check` is called with each folder before a name in it is opened; its exceptions are passed on.
    Raises OSError if a name cannot be opened. Raises ValueError if the path is not absolute,
    contains `..`, or has too many parts.
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
    """The open folders from a root down to the current one, so that `..` can go back up."""

    def __init__(self, root: str, check: Callable[[int], None]) -> None:
        self._check = check
        self.descriptors = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]

    def go(self, waiting: list[str]) -> None:
        """Open all parts of a path, including the parts of links in it."""
        links = parts = 0
        while waiting:
            name = waiting.pop()
            parts += 1
            if name == "..":  # only links can contain it; the root is its own parent
                self.close(all_but=max(1, len(self.descriptors) - 1))
                continue
            if target := self._open_name(name):
                links += 1
                waiting.extend(_parts(target))
            if links > MAX_LINKS or parts > MAX_PARTS:
                raise ValueError("a path with too many parts or links")

    def _open_name(self, name: str) -> str:
        """Open one name. For a link, return its target and go back to the folder where the target
        starts.
        """
        self._check(self.descriptors[-1])
        found = os.open(name, _WALK, dir_fd=self.descriptors[-1])
        self.descriptors.append(found)
        if not stat.S_ISLNK(os.fstat(found).st_mode):
            return ""
        target = os.readlink("", dir_fd=found)
        self.close(all_but=1 if target.startswith("/") else len(self.descriptors) - 1)
        return target

    def close(self, *, all_but: int) -> None:
        """Close all descriptors but the first `all_but`."""
        while len(self.descriptors) > all_but:
            os.close(self.descriptors.pop())


def _parts(path: str) -> list[str]:
    """Return the names of a path in reverse order."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
