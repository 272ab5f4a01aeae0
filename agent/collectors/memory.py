"""Collector: memory that is nearly full, and processes that wait for memory.

A cgroup with a memory limit that is full makes its processes reclaim pages, which may take longer
than their work, before the kernel ends one of them. Pressure (PSI, accounting/psi) is the share of
the time in which processes waited for memory, for storage, or for a CPU.

The limit may be the one of a folder above: of a pod, or of the job's step.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from agent.cgroups import CGROUP_MOUNT, list_folders, read_file
from agent.collectors.oom_report import say_bytes
from agent.collectors.subjects import name_pid
from agent.procfs import Proc
from watchtower.metric_spec import Sample, gauge
from watchtower.wire.observations import Observation

PRESSURE = gauge(
    "watchtower_pressure_ratio",
    "resource",
    "Share of the last 10 s in which a process of the node waited for the resource: `cpu`, "
    "`memory`, `io`. On kernels that count it (PSI).",
)
FULLEST = gauge(
    "watchtower_memory_limit_used_ratio",
    "",
    "Used share of the memory limit that is fullest, of the ranks of the node. File cache that can "
    "be dropped does not count. Without a limit there is no series.",
)

EVERY_S = 10.0
"""Seconds between two reads. A read takes some 20 us a file."""

FULL = 0.97
"""A larger share of a limit is reported."""

PRESSED = 0.10
"""A larger share of the time in which all processes of a cgroup waited for memory is reported. A
program that only fills its cache stays far below."""

MAX_RANKS = 64
MAX_FOLDERS = 8
"""Folders read for one rank, its own first."""

NO_LIMIT = 1 << 60
"""The kernel writes a limit of cgroup v1 that was never set as some exabytes."""

RESOURCES = ("cpu", "memory", "io")

_SHARE = re.compile(r"^(some|full) avg10=(\d{1,3}\.\d{1,4}) ", re.MULTILINE)
_FILE_CACHE = re.compile(r"^(?:total_)?inactive_file (\d{1,19})$", re.MULTILINE)


class _Use(NamedTuple):
    """One cgroup with a memory limit."""

    share: float
    used: int
    limit: int


class Memory:
    """Reads the cgroups of the ranks, and the pressure on the node."""

    name = "memory"
    metrics = (PRESSURE, FULLEST)

    def __init__(
        self, root: str = "/", find_ranks: Callable[[], Iterable[int]] = lambda: ()
    ) -> None:
        """`find_ranks` returns the pids of the ranks of now."""
        self._proc, self._root = Proc(root), root
        self._mount = os.path.join(root, CGROUP_MOUNT)
        self._find_ranks = find_ranks
        self._read_at = float("-inf")
        self._uses: dict[int, _Use] = {}
        """By pid: the limit that is fullest."""
        self._pressed: dict[int, float] = {}
        self._pressure: dict[str, float] = {}

    def collect(self, now: float) -> Iterator[Observation]:
        """Return the ranks whose limit is nearly full, and those that wait for memory."""
        if now - self._read_at >= EVERY_S:
            self._read_at = now
            self._read()
        for pid, use in self._uses.items():
            if use.share >= FULL:
                said = f"{say_bytes(use.used)} of {say_bytes(use.limit)}"
                text = f"its memory limit is {use.share:.0%} full ({said})"
                yield self._observe(pid, "memory_limit", use.share, text, now)
        for pid, share in self._pressed.items():
            text = f"all processes of its cgroup waited for memory in {share:.0%} of the last 10 s"
            yield self._observe(pid, "memory_pressure", share, text, now)

    def samples(self, wall_now: float) -> Iterator[Sample]:
        """Return the pressure on the node, and the fullest limit."""
        for resource, share in self._pressure.items():
            yield Sample(PRESSURE, (resource,), share)
        if self._uses:
            yield Sample(FULLEST, (), max(use.share for use in self._uses.values()))

    @property
    def can_read(self) -> bool:
        """Whether the last read found a limit or a pressure."""
        return bool(self._uses or self._pressure)

    @property
    def is_absent(self) -> bool:
        """Whether no rank has a limit, and the kernel counts no pressure."""
        return not self.can_read

    def gap(self) -> str:
        """Return an empty text: these files are readable for everybody."""
        return ""

    def stop(self) -> None:
        """Do nothing: no file is open."""

    def _read(self) -> None:
        folder = os.path.join(self._root, "proc/pressure")
        found = {each: _read_share(read_file(folder, each), "some") for each in RESOURCES}
        self._pressure = {each: share for each, share in found.items() if share is not None}
        self._uses, self._pressed = {}, {}
        for pid in islice(self._find_ranks(), MAX_RANKS):
            inside = islice(list_folders(self._proc, pid, "memory"), MAX_FOLDERS)
            folders = [os.path.join(self._mount, each) for each in inside]
            uses = [use for each in folders if (use := _read_use(each)) is not None]
            if uses:
                self._uses[pid] = max(uses)
            shares = (_read_share(read_file(each, "memory.pressure"), "full") for each in folders)
            share = max((each for each in shares if each is not None), default=0.0)
            if share >= PRESSED:
                self._pressed[pid] = share

    def _observe(self, pid: int, name: str, value: float, text: str, now: float) -> Observation:
        return Observation(
            source=self.name,
            subject=name_pid(pid),
            name=name,
            age_s=now - self._read_at,
            value=value,
            text=text,
            pid=pid,
        )


def _read_share(text: str, kind: str) -> float | None:
    """Return the share of the last 10 s; None if the kernel does not count it."""
    found = {word: float(share) / 100 for word, share in _SHARE.findall(text)}
    return min(1.0, found[kind]) if kind in found else None


def _read_use(folder: str) -> _Use | None:
    """Return the memory of a cgroup, cgroup v2 or v1; None without a limit."""
    limit = _number(read_file(folder, "memory.max") or read_file(folder, "memory.limit_in_bytes"))
    used = _number(
        read_file(folder, "memory.current") or read_file(folder, "memory.usage_in_bytes")
    )
    if limit is None or used is None or not 0 < limit < NO_LIMIT:
        return None
    cache = _FILE_CACHE.findall(read_file(folder, "memory.stat"))
    held = max(0, used - max(map(int, cache), default=0))
    return _Use(held / limit, held, limit)


def _number(text: str) -> int | None:
    word = text.strip()
    return int(word) if word.isdecimal() and len(word) < 20 else None
