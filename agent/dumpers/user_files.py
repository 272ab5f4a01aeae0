"""Opens a file as another process sees it, and only if that process may read it.

The agent is root or has CAP_DAC_READ_SEARCH, so the kernel lets it read every file. To become the
user of the process, the agent would need a further capability. Therefore the mode is checked here.
Access control lists count only through their mask, which is in the mode.

Under /proc/PID/root the kernel resolves an absolute link from the root of the calling process. In a
container this would be the wrong file, perhaps one that the owner of the link may not open.
Therefore each part of the path is opened on its own, and links are resolved here.

Standard library only: child processes use it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

from agent.mounts import PSEUDO_FILE_SYSTEMS, mount_of, type_of

READ, SEARCH = 4, 1
"""Bits of a mode, as for "other". `SEARCH` is the right to open a name in a folder."""

_OVERRIDE = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH. Root has the first one in most containers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRights:
    """The rights of one process."""

    user: int
    """The real user id, so that a set-user-ID program gets no additional rights here."""
    groups: frozenset[int]
    is_root: bool = False
    """True for root with a capability that overrides modes, as seen from the agent's user
    namespace.
    """

    def has(self, status: os.stat_result, wanted: int) -> bool:
        """Return whether the process has this right on a file or folder."""
        if self.is_root:
            return True
        if status.st_uid == self.user:
            return bool(status.st_mode >> 6 & wanted)
        if status.st_gid in self.groups:
            return bool(status.st_mode >> 3 & wanted)
        return bool(status.st_mode & wanted)


def parse_rights(status: bytes) -> FileRights:
    """Parse /proc/PID/status. Raises ValueError if a user or a group is missing."""
    fields: dict[bytes, bytes] = {}
    for line in status.split(b"\n"):
        name, _, value = line.partition(b":")
        fields.setdefault(name, value)
    user = _first(fields, b"Uid")
    groups = [_first(fields, b"Gid"), *map(int, fields.get(b"Groups", b"").split())]
    capabilities = int(fields.get(b"CapEff", b"0").strip() or b"0", 16)
    return FileRights(
        user=user,
        groups=frozenset(groups),
        is_root=user == 0 and bool(capabilities & _OVERRIDE),
    )


def _first(fields: dict[bytes, bytes], name: bytes) -> int:
    values = fields.get(name, b"").split()
    if not values:
        raise ValueError(f"the status of a process has no {name.decode()}")
    return int(values[0])


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


MAX_TABLE_BYTES = 1 << 20
"""Bytes read of a file in /proc. A node with thousands of mounts has less."""


class NotReadable(Exception):
    """This file is not read."""


def check_readable(found: int, process: str, rights: FileRights) -> os.stat_result:
    """Return the status of a file. `found` is an O_PATH descriptor, `process` is "/proc/PID".

    Raises NotReadable if it is not regular, on a pseudo file system, or not readable for the
    process. Raises OSError.
    """
    status = os.fstat(found)
    if not stat.S_ISREG(status.st_mode) or not rights.has(status, READ):
        raise NotReadable
    # After a chroot the process does not see the mount of its root. The numbers are the kernel's.
    mounts = read_table(f"{process}/mountinfo") + read_table("/proc/self/mountinfo")
    kind = type_of(mounts, mount_of(read_table(f"/proc/self/fdinfo/{found}")))
    if not kind or kind in PSEUDO_FILE_SYSTEMS:
        raise NotReadable
    return status


def reopen(found: int) -> int:
    """Return a descriptor to read the file of an O_PATH descriptor. Raises OSError."""
    return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def read_table(path: str) -> bytes:
    """Return the beginning of a file in /proc. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(MAX_TABLE_BYTES)
