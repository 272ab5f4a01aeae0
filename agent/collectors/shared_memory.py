"""Collector: how full /dev/shm is, and which files a dead job of NCCL has left there.

NCCL, Gloo and data loaders share memory there. A process that finds no room is ended by SIGBUS, or
its set-up fails. A container has a /dev/shm of its own, so that of every rank is looked at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from agent.collectors.oom_report import say_bytes
from agent.collectors.subjects import name_pid
from agent.procfs import Proc
from watchtower.metric_spec import Sample, gauge
from watchtower.wire.observations import NODE, Observation

USED = gauge("watchtower_shm_used_ratio", "", "Used share of the node's /dev/shm, 0 to 1.")
STALE = gauge(
    "watchtower_shm_stale_bytes",
    "",
    "Size of the files `nccl-*` in the node's /dev/shm that are older than an hour. NCCL removes "
    "its files when a job has started, so a job that was killed has left them.",
)

EVERY_S = 10.0
"""Seconds between two reads."""

FULL = 0.95
"""A larger share is reported."""

STALE_S = 3600.0
"""Age of a file that no start of a job can still need."""

STALE_BYTES = 1 << 30
"""Stale files are reported from this size on, also if there is room."""

MAX_RANKS = 64
MAX_FILES = 4096
"""Files of one folder that are looked at. NCCL has some for each pair of GPUs."""

PREFIX = "nccl-"


@dataclass(frozen=True, slots=True)
class _Use:
    """One /dev/shm."""

    used: float
    bytes: int
    stale_bytes: int
    stale_files: int


class SharedMemory:
    """Reads the shared memory of the node and of its ranks."""

    name = "shared_memory"
    metrics = (USED, STALE)

    def __init__(
        self,
        root: str = "/",
        find_ranks: Callable[[], Iterable[int]] = lambda: (),
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`find_ranks` returns the pids of the ranks of now, `wall` the time of day."""
        self._path = os.path.join(root, "dev/shm")
        self._proc, self._find_ranks, self._wall = Proc(root), find_ranks, wall
        self._read_at = float("-inf")
        self._node: _Use | None = None
        self._others: dict[int, _Use] = {}
        """Of containers, by the pid of a rank."""

    def collect(self, now: float) -> Iterator[Observation]:
        """Return an observation for each /dev/shm that is nearly full or has stale files."""
        if now - self._read_at >= EVERY_S:
            self._read_at = now
            self._read()
        if self._node is not None:
            yield from self._observe(self._node, NODE, None, now)
        for pid, use in self._others.items():
            yield from self._observe(use, name_pid(pid), pid, now)

    def samples(self, wall_now: float) -> Iterator[Sample]:
        """Return the values of the node's own /dev/shm."""
        if self._node is not None:
            yield Sample(USED, (), self._node.used)
            yield Sample(STALE, (), self._node.stale_bytes)

    @property
    def can_read(self) -> bool:
        """Whether the last read found the node's /dev/shm."""
        return self._node is not None

    @property
    def is_absent(self) -> bool:
        """Whether this system has no /dev/shm."""
        return not os.path.exists(self._path)

    def gap(self) -> str:
        """Return why it is not known how full it is; empty on a system without it."""
        if self.can_read or self.is_absent:
            return ""
        return f"shared memory: {self._path} cannot be read"

    def stop(self) -> None:
        """Do nothing: no file is open."""

    def _read(self) -> None:
        now = self._wall()
        seen: set[int] = set()
        self._node, self._others = _measure(self._path, seen, now), {}
        for pid in islice(self._find_ranks(), MAX_RANKS):
            use = _measure(self._proc.file(pid, "root/dev/shm"), seen, now)
            if use is not None:
                self._others[pid] = use

    def _observe(
        self, use: _Use, subject: str, pid: int | None, now: float
    ) -> Iterator[Observation]:
        is_full = use.used >= FULL
        if not is_full and use.stale_bytes < STALE_BYTES:
            return
        said = f"/dev/shm is {use.used:.0%} full ({say_bytes(use.bytes)})"
        if use.stale_files:
            said += f"; {use.stale_files} old files nccl-* have {say_bytes(use.stale_bytes)}"
        yield Observation(
            source=self.name,
            subject=subject,
            name="shm_full" if is_full else "shm_stale",
            age_s=now - self._read_at,
            value=use.used,
            text=said,
            pid=pid,
        )


def _measure(path: str, seen: set[int], now: float) -> _Use | None:
    """Return the use of a /dev/shm; None if it cannot be read or its file system was `seen`."""
    try:
        device = os.stat(path).st_dev
        if device in seen:
            return None
        size = os.statvfs(path)
        seen.add(device)
        stale = [each for each in _list_sizes(path, now) if each is not None]
    except OSError:
        return None
    total = size.f_blocks * size.f_frsize
    used = 1 - size.f_bavail / max(size.f_blocks, 1)
    return _Use(used, total, sum(stale), len(stale))


def _list_sizes(path: str, now: float) -> Iterator[int | None]:
    """Yield the bytes of each stale file, and None for others."""
    with os.scandir(path) as entries:
        for entry in islice(entries, MAX_FILES):
            if not entry.name.startswith(PREFIX):
                continue
            try:
                about = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # it was removed a moment ago
            yield about.st_blocks * 512 if now - about.st_mtime > STALE_S else None
