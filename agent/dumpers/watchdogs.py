"""Dumper: a watchdog thread of torch that is blocked in a call of the device's driver.

torch starts one for each group of NCCL. It asks the device ten times a second whether a collective
is over. Where the main threads of all ranks wait for their devices, a driver that does not answer
is seen here: this thread does not come back. The kernel has its name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

from agent.dumpers.dumper import RanksOfRound, Step
from agent.dumpers.native_places import READ_NATIVELY, NativePlaces
from agent.procfs import Proc
from watchtower.wire.dumps import NativeKind

WATCHDOG = "pt_nccl_watchdg"
"""The name of these threads. The kernel cuts names after 15 characters."""

MAX_NAMES = 512
"""Threads of a rank whose names are read."""

MAX_WATCHDOGS = 4
"""Watchdogs of one rank that are sampled: a driver that does not answer one answers none."""


class Watchdogs:
    """Reads where the watchdogs of ranks are in native code."""

    name, at_once, needs_stacks = "watchdogs", 1, False

    def __init__(self, proc: Proc, places: NativePlaces) -> None:
        self._proc, self._places = proc, places

    def plan(self, ranks: RanksOfRound) -> Sequence[Step]:
        """Return one step for all ranks. A sample does not need it."""
        return [] if ranks.is_sample else [partial(self._fill, ranks)]

    def _fill(self, ranks: RanksOfRound) -> None:
        live = {
            tree.process.pid: tree
            for tree in ranks.trees
            if tree.process.kernel.state in READ_NATIVELY
        }
        tids = {pid: list(islice(self._find(pid), MAX_WATCHDOGS)) for pid in live}
        wanted = {pid: found for pid, found in tids.items() if found}
        if not wanted:
            return
        for pid, places in self._places.sample_threads(wanted, ranks.owner).items():
            blocked = (
                place
                for place in places.values()
                if place.kind is NativeKind.DEVICE_WAIT and not place.running
            )
            live[pid].evidence["watchdog"] = next(blocked, None)

    def _find(self, pid: int) -> Iterator[int]:
        """Yield the ids of the watchdogs of a process."""
        try:
            tids = sorted(map(int, os.listdir(f"{self._proc.path}/{pid}/task")))[:MAX_NAMES]
        except OSError:
            return
        for tid in tids:
            if self._proc.try_read(pid, f"task/{tid}/comm", 64).strip() == WATCHDOG.encode():
                yield tid
