"""Collector: CPU limits that stop the ranks of the node.

A cgroup with a CPU limit may use so much CPU time in each period, usually 100 ms. When it has used
it, the kernel stops all its processes until the next period (admin-guide/cgroup-v2 `cpu.max`,
scheduler/sched-bwc). Such a rank works more slowly than its peers, and its stack does not show why.

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

LIMITED = gauge(
    "watchtower_cpu_limited_ranks",
    "",
    "Ranks of the node that a CPU limit stopped in 25 % of its latest periods or more.",
)

EVERY_S = 10.0
"""Seconds between two reads: 100 periods. A read takes some 20 us a file."""

REPORTED = 0.25
"""Smallest share of stopped periods that is reported. A program that starts threads for a moment is
stopped now and then."""

MIN_PERIODS = 20
"""A share of fewer periods says little. Only periods in which the cgroup ran are counted."""


class _Count(NamedTuple):
    """Periods of one cgroup since it was made."""

    periods: int
    stopped: int
    cpus: float
    """The limit, in CPUs."""


class _Share(NamedTuple):
    """How often the limit of one cgroup stopped its processes between two reads."""

    value: float
    periods: int
    cpus: float


class CpuLimits(Collector):
    """Reads the cgroups of the ranks."""

    name = "cpu_limit"
    metrics = (LIMITED,)

    def __init__(
        self, root: str = "/", find_ranks: Callable[[], Iterable[int]] = lambda: ()
    ) -> None:
        """`find_ranks` returns the pids of the ranks of now."""
        self._proc = Proc(root)
        self._mount = os.path.join(root, CGROUP_MOUNT)
        self._find_ranks = find_ranks
        self._read_at = float("-inf")
        self._counts: dict[str, _Count] = {}
        """By folder, as of the last read."""
        self._stopped: dict[int, _Share] = {}
        """By pid: the limit that stopped the rank most."""

    def collect(self, now: float) -> Iterator[Observation]:
        """Return one observation for each rank that is often stopped."""
        if now - self._read_at >= EVERY_S:
            self._read_at = now
            self._read()
        for pid, share in self._stopped.items():
            yield Observation(
                source=self.name,
                subject=name_pid(pid),
                name="cpu_limit",
                age_s=now - self._read_at,
                value=share.value,
                text=f"its CPU limit ({share.cpus:g} CPUs) stopped it in {share.value:.0%} of "
                f"{share.periods} periods",
                pid=pid,
            )

    def samples(self, wall_now: float) -> Iterator[Sample]:
        """Return the number of ranks that are often stopped."""
        yield Sample(LIMITED, (), len(self._stopped))

    @property
    def can_read(self) -> bool:
        """Whether the last read found a CPU limit."""
        return bool(self._counts)

    def _read(self) -> None:
        folders = find_folders(self._proc, self._find_ranks(), "cpu")
        wanted = dict.fromkeys(each for levels in folders.values() for each in levels)
        before = self._counts
        counts = ((each, _count(os.path.join(self._mount, each))) for each in wanted)
        self._counts = {each: count for each, count in counts if count is not None}
        shares = {
            each: _compare(before[each], count)
            for each, count in self._counts.items()
            if each in before
        }
        self._stopped = {}
        for pid, levels in folders.items():
            own = (shares[each] for each in levels if each in shares)
            enough = (share for share in own if share.periods >= MIN_PERIODS)
            worst = max(enough, default=None)
            if worst is not None and worst.value >= REPORTED:
                self._stopped[pid] = worst


def _count(folder: str) -> _Count | None:
    """Return the periods of a cgroup; None if it has no limit or is gone."""
    cpus = _read_limit(folder)
    if cpus is None:
        return None
    values = parse_rows(read_file(folder, "cpu.stat"))
    try:
        return _Count(values["nr_periods"], values["nr_throttled"], cpus)
    except KeyError:
        return None


def _read_limit(folder: str) -> float | None:
    """Return the limit in CPUs; None without one."""
    words = read_file(folder, "cpu.max").split() or [
        *read_file(folder, "cpu.cfs_quota_us").split(),
        *read_file(folder, "cpu.cfs_period_us").split(),
    ]
    if len(words) != 2 or not all(each.isdecimal() for each in words) or int(words[1]) == 0:
        return None  # "max", or -1: no limit
    return int(words[0]) / int(words[1])


def _compare(before: _Count, now: _Count) -> _Share:
    periods = now.periods - before.periods
    stopped = now.stopped - before.stopped
    return _Share(min(1.0, stopped / periods) if periods > 0 else 0.0, periods, now.cpus)
