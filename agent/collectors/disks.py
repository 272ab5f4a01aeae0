"""Collector: full file systems in which ranks work.

A program that tries again when a write fails makes no error, and waits for ever. Only disks of the
node and file systems in memory are read: of others, this call may not return. `shared_memory.py`
reads /dev/shm.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from agent.collectors.collector import Collector, name_pid
from agent.mounts import MAX_LINES, parse_mount
from agent.procfs import Proc
from watchtower.wire.observations import MAX_OBSERVATION_TEXT, Observation
from watchtower.writing.printable import printable

EVERY_S = 5.0
"""Seconds between two readings: 10 us for each file system."""

LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs"})
"""File systems whose state the kernel has in memory."""

LEFT = 0.001
"""Largest free share of a full file system, of its bytes or of its files."""

SHARED_MEMORY = "/dev/shm"

MAX_RANKS = 64
"""Ranks that are read. A node has up to 16."""

MAX_DESCRIPTORS = 512
"""Descriptors of a rank that are read, only if a file system is full."""

MAX_TABLE = 1 << 18
"""Bytes read of the table of mounts of one process."""


class _Full(NamedTuple):
    """A full file system, as the ranks of one mount namespace see it."""

    since: float
    """When it was first seen to be full; 0 if it was so in the first reading."""
    text: str


class Disks(Collector):
    """Reads the file systems of the ranks of one root."""

    name = "disks"

    def __init__(
        self, root: str = "/", find_ranks: Callable[[], Iterable[int]] = lambda: ()
    ) -> None:
        """`find_ranks` returns the pids of the ranks of now."""
        self._proc, self._find_ranks = Proc(root), find_ranks
        self._read_at = float("-inf")
        self._known: dict[tuple[str, str], _Full | None] = {}
        """By mount namespace and mount point. None: it was not full."""
        self._found: list[tuple[int, _Full]] = []
        """The ranks that work in one."""

    def collect(self, now: float) -> Iterator[Observation]:
        """Return one observation for each rank and full file system in which it works."""
        if now - self._read_at >= EVERY_S:
            self._read_at = now
            self._read(now)
        for pid, full in self._found:
            yield Observation(
                source=self.name,
                subject=name_pid(pid),
                name="disk_full",
                age_s=now - full.since,
                text=printable(full.text, MAX_OBSERVATION_TEXT),
                pid=pid,
            )

    def _read(self, now: float) -> None:
        before, self._known, self._found = self._known, {}, []
        points: dict[str, list[str]] = {}
        for pid in islice(self._find_ranks(), MAX_RANKS):
            namespace = self._proc.link(pid, "ns/mnt") or str(pid)
            if namespace not in points:
                points[namespace] = self._read_namespace(pid, namespace, before, now)
            full = {p: each for (n, p), each in self._known.items() if n == namespace and each}
            if full:
                used = {_find_point(path, points[namespace]) for path in self._list_paths(pid)}
                self._found += [(pid, each) for point, each in full.items() if point in used]

    def _read_namespace(
        self,
        pid: int,
        namespace: str,
        before: dict[tuple[str, str], _Full | None],
        now: float,
    ) -> list[str]:
        """Read the local file systems of a namespace. Returns all mount points of it."""
        table = self._proc.try_read(pid, "mountinfo", MAX_TABLE).split(b"\n", MAX_LINES)[:MAX_LINES]
        mounts = [mount for line in table if (mount := parse_mount(line)) is not None]
        for mount in mounts:
            if mount.kind not in LOCAL or mount.point.startswith(SHARED_MEMORY):
                continue
            key = namespace, mount.point
            text, earlier = self._measure(pid, mount.point), before.get(key)
            is_new = earlier is None and key in before
            since = earlier.since if earlier else now if is_new else 0.0
            self._known[key] = _Full(since, text) if text else None
        return [mount.point for mount in mounts]

    def _measure(self, pid: int, point: str) -> str:
        """Return that a file system is full; empty if it has room, or cannot be written to."""
        try:
            size = os.statvfs(self._proc.file(pid, "root") + point)
        except (OSError, ValueError):
            return ""
        if size.f_flag & os.ST_RDONLY or not size.f_blocks:
            return ""
        if size.f_bavail <= LEFT * size.f_blocks:
            total = size.f_blocks * size.f_frsize / (1 << 30)
            return f"the file system {point}, in which it works, is full: {total:.1f} GiB"
        if size.f_files and size.f_favail <= LEFT * size.f_files:
            return f"the file system {point}, in which it works, has room for no more files"
        return ""

    def _list_paths(self, pid: int) -> Iterator[str]:
        """Yield where a process works: its folder and its open files."""
        yield self._proc.link(pid, "cwd")
        yield from islice(self._proc.descriptors(pid), MAX_DESCRIPTORS)


def _find_point(path: str, points: Iterable[str]) -> str:
    """Return the mount point of a path; of several, the nearest one."""
    above = (each for each in points if path == each or path.startswith(each.rstrip("/") + "/"))
    return max(above, key=len, default="")
