"""The processes of the node and their ancestors, with one stat read per new process.

Ancestors are remembered after they end. A DataLoader worker belongs to its rank even after the rank
was killed and the kernel has given the worker another parent.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from agent.procfs import CLOCK_TICKS_PER_S, Proc, Stat

MAX_LINEAGE = 64
"""Ancestors checked. Longer chains come only from programs that fork themselves again and again."""


@dataclass(slots=True, kw_only=True, eq=False)
class Process:
    """One process as it was when first seen. `parent` is its parent at that time."""

    pid: int
    ppid: int
    start_time: int
    comm: str
    alive: bool = True
    was_rank: bool = False
    parent: Process | None = None
    guardian: Process | None = None
    """The living process that has this one in `children`: the parent, or its nearest living
    ancestor.
    """
    children: dict[Process, None] = field(default_factory=dict)
    """Living children, and those inherited from dead children, oldest first."""

    @property
    def age_s(self) -> float:
        """Seconds since it was started."""
        boot_now = time.clock_gettime(time.CLOCK_BOOTTIME)
        return max(0.0, boot_now - self.start_time / CLOCK_TICKS_PER_S)

    def name_start(self, booted_at: float) -> str:
        """Return when it was started, in UTC, as "05:31". `booted_at`: UNIX seconds."""
        started_at = time.gmtime(booted_at + self.start_time / CLOCK_TICKS_PER_S)
        return time.strftime("%H:%M", started_at)

    def lineage(self) -> Iterator[Process]:
        """Yield parent, grandparent and so on, including dead ones."""
        process, depth = self.parent, 0
        while process is not None and depth < MAX_LINEAGE:
            yield process
            process, depth = process.parent, depth + 1

    def descendants(self) -> Iterator[Process]:
        """Yield living children and their descendants, nearest first."""
        waiting = deque(self.children)
        while waiting:
            process = waiting.popleft()
            yield process
            waiting.extend(process.children)


class ProcessTable:
    """All processes of the node by pid, refreshed once a tick."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._processes: dict[int, Process] = {}
        self._ignored: set[int] = set()

    def refresh(self) -> tuple[list[Process], list[Process]]:
        """Read /proc once; return the new processes and the ended ones."""
        pids = self._proc.pids()
        known = self._processes.keys() | self._ignored
        gone = [self._remove(pid) for pid in self._processes.keys() - pids]
        self._ignored &= pids
        stats = {pid: stat for pid in sorted(pids - known) if (stat := self._proc.stat(pid))}
        return self._add(stats), gone

    def _add(self, stats: dict[int, Stat]) -> list[Process]:
        new: list[Process] = []
        for pid, stat in stats.items():
            if stat.kernel_thread:
                self._ignored.add(pid)
                continue
            process = Process(pid=pid, ppid=stat.ppid, start_time=stat.start_time, comm=stat.comm)
            self._processes[pid] = process
            new.append(process)
        for process in new:
            parent = self._processes.get(process.ppid)
            if parent is not None and parent is not process:
                process.parent = process.guardian = parent
                parent.children[process] = None
                _cut(process)
        return new

    def _remove(self, pid: int) -> Process:
        process = self._processes.pop(pid)
        process.alive = False
        if process.guardian is not None:
            process.guardian.children.pop(process, None)
        heir = next((ancestor for ancestor in process.lineage() if ancestor.alive), None)
        for child in process.children:
            child.guardian = heir
            if heir is not None:
                heir.children[child] = None
        process.children = {}
        return process


def _cut(process: Process) -> None:
    """Forget ancestors that are too far above, so that endless forking does not use up memory."""
    *_, last = process.lineage()
    if last.parent is not None:
        last.parent = None
