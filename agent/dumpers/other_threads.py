"""Dumper: where those threads are for which a blocked main thread may wait. One of them may train.

Only py-spy knows them, so this is a second sample, after the stacks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from agent.children import REAP_S
from agent.dumpers.dumper import ROUND_GRACE_S, RanksOfRound, Step, Tree
from agent.dumpers.kernel_state import read_thread_wait
from agent.dumpers.native_places import PLACES_DEADLINE_S, NativePlaces
from agent.dumpers.watched_descriptors import WATCHED_DEADLINE_S, ThreadId, WatchedDescriptors
from agent.procfs import Proc
from watchtower.wire.dumps import NativeKind, NativePlace

SECOND_SAMPLE_S = PLACES_DEADLINE_S + WATCHED_DEADLINE_S + 3 * REAP_S
"""The sample ends within this many seconds. With less time left, none is begun."""

MAX_OTHER_THREADS = 8
"""Threads of one rank that are sampled beside main: one that trains, and some that load data."""


class OtherThreads:
    """Reads where the other threads of ranks are, in native code and in the kernel."""

    name, at_once, needs_stacks = "threads", 1, True

    def __init__(self, proc: Proc, places: NativePlaces, watched: WatchedDescriptors) -> None:
        self._proc, self._places, self._watched = proc, places, watched

    def plan(self, ranks: RanksOfRound) -> Sequence[Step]:
        """Return one step for all ranks, if there is enough time."""
        is_late = time.monotonic() + SECOND_SAMPLE_S > ranks.deadline + ROUND_GRACE_S
        return [] if is_late else [partial(self._fill, ranks)]

    def _fill(self, ranks: RanksOfRound) -> None:
        waiting = {tree.process.pid: tree.process for tree in ranks.trees if may_wait(tree)}
        tids = {
            pid: process.stacks.threads.waited_for(MAX_OTHER_THREADS)
            for pid, process in waiting.items()
            if process.stacks.threads is not None
        }
        wanted = {pid: named for pid, named in tids.items() if named}
        places = self._places.sample_threads(wanted, ranks.owner)
        waits = {
            ThreadId(pid, tid): read_thread_wait(self._proc, pid, tid, ranks.tables)
            for pid, named in wanted.items()
            for tid in named
        }
        waits |= self._watched.find(waits, ranks.owner, ranks.tables)
        for pid, named in wanted.items():
            kernels = {tid: waits[ThreadId(pid, tid)] for tid in named}
            waiting[pid].stacks = waiting[pid].stacks.with_waits(places.get(pid, {}), kernels)


def may_wait(tree: Tree) -> bool:
    """Return whether the main thread is blocked, and not in a wait for its device."""
    native: NativePlace | None = tree.evidence.get("native")
    return native is not None and not native.running and native.kind is not NativeKind.DEVICE_WAIT
