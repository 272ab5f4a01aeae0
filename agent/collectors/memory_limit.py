"""Collector: ranks whose memory is nearly used up.

A cgroup with a memory limit that is nearly full makes its processes search for pages that can be
freed, each time they need one. Such a rank is slow for minutes before the kernel ends a process of
it, or for ever if there is always a page left (admin-guide/cgroup-v2 `memory.max`, `memory.stat`;
cgroup-v1/memory).

Pages of files that were not used lately are free to be used again, so they do not count.

The limit may be the one of a folder above: of a pod, or of the job's step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from agent.cgroups import CGROUP_MOUNT, find_folders, parse_rows, read_file
from agent.collectors.collector import Collector, name_pid
from agent.procfs import Proc
from watchtower.service.metric_spec import Sample, gauge
from watchtower.wire.observations import Observation

USED = gauge(
    "watchtower_memory_limit_used_ratio",
    "",
    "Largest used share of a memory limit of the ranks of the node, 0 to 1. No series without one.",
)

EVERY_S = 10.0
"""Seconds between two reads. A read takes some 20 us a file."""

REPORTED = 0.95
"""Smallest used share that is reported."""

NO_LIMIT_BYTES = 1 << 60
"""A limit of cgroup v1 that was never set is about 2**63 bytes."""

_GIB = 1 << 30


class _Use(NamedTuple):
    """How much of one limit is used."""

    ratio: float
    used: int
    limit: int


class MemoryLimits(Collector):
    """Reads the cgroups of the ranks."""

    name = "memory_limit"
    metrics = (USED,)

    def __init__(
        self, root: str = "/", find_ranks: Callable[[], Iterable[int]] = lambda: ()
    ) -> None:
        """`find_ranks` returns the pids of the ranks of now."""
        self._proc = Proc(root)
        self._mount = os.path.join(root, CGROUP_MOUNT)
        self._find_ranks = find_ranks
        self._read_at = float("-inf")
        self._uses: dict[int, _Use] = {}
        """By pid: the limit of which most is used."""

    def collect(self, now: float) -> Iterator[Observation]:
        """Return one observation for each rank whose memory is nearly used up."""
        if now - self._read_at >= EVERY_S:
            self._read_at = now
            self._read()
        for pid, use in self._uses.items():
            if use.ratio >= REPORTED:
                yield Observation(
                    source=self.name,
                    subject=name_pid(pid),
                    name="memory_limit",
                    age_s=now - self._read_at,
                    value=use.ratio,
                    text=f"it uses {use.used / _GIB:.1f} GiB of its memory limit of "
                    f"{use.limit / _GIB:.1f} GiB",
                    pid=pid,
                )

    def samples(self, wall_now: float) -> Iterator[Sample]:
        """Return the largest used share."""
        if self._uses:
            yield Sample(USED, (), max(use.ratio for use in self._uses.values()))

    @property
    def can_read(self) -> bool:
        """Whether the last read found a memory limit."""
        return bool(self._uses)

    def _read(self) -> None:
        self._uses = {}
        known: dict[str, _Use | None] = {}
        for pid, folders in find_folders(self._proc, self._find_ranks(), "memory").items():
            for each in folders:
                if each not in known:
                    known[each] = _read_use(os.path.join(self._mount, each))
            uses = [use for each in folders if (use := known[each]) is not None]
            if uses:
                self._uses[pid] = max(uses)


def _read_use(folder: str) -> _Use | None:
    """Return how much of a cgroup's limit is used; None without a limit."""
    stat = parse_rows(read_file(folder, "memory.stat"))
    limit, used = read_file(folder, "memory.max"), read_file(folder, "memory.current")
    freeable = stat.get("inactive_file", 0)
    if not limit:
        limit = read_file(folder, "memory.limit_in_bytes")
        used = read_file(folder, "memory.usage_in_bytes")
        freeable = stat.get("total_inactive_file", freeable)
    if not _is_count(limit) or not _is_count(used) or not 0 < int(limit) < NO_LIMIT_BYTES:
        return None  # "max": no limit
    held = max(0, int(used) - freeable)
    return _Use(min(1.0, held / int(limit)), held, int(limit))


def _is_count(text: str) -> bool:
    return text.strip().isdecimal() and len(text) < 24
