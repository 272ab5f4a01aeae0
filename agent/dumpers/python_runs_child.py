"""Finds which main threads run Python within some seconds, in a separate process that can be
abandoned.

The arguments are the path of /proc, the seconds, and the processes. A line answers a process:
{"pid": 4711, "ran_python": true}. A process that cannot be sampled, or whose mappings cannot be
read, has none.

The samples are program counters only: the target is not stopped. Reading its mappings may hang, so
they are read once, when there are samples, and not while the target is in state D. Standard library
only.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence

from agent.dumpers.native_child import is_readable
from agent.dumpers.native_libraries import PYTHON, class_of
from agent.dumpers.perf_clock import PerfClock, PerfError
from agent.memory import Maps, read_maps

PERIOD_NS = 1_000_000
"""Nanoseconds of CPU time between two samples. A step may run Python for a few milliseconds."""

DRAIN_S = 0.1
"""Seconds between two reads of the ring buffers. One has room for 0.3 s of a running thread."""


class MainThread:
    """The main thread of one process: its clock, and the mappings of the process."""

    def __init__(self, proc: str, pid: int) -> None:
        """Raises PerfError."""
        self._folder = f"{proc}/{pid}"
        self._maps: Maps | None = None
        self.is_known = True
        """No samples were dropped because the mappings could not be read."""
        self._clock = PerfClock(pid, period_ns=PERIOD_NS, stack_bytes=0)

    def ran(self) -> bool:
        """Return whether it ran Python since the last call. Raises OSError."""
        samples = self._clock.drain()
        if samples and self._maps is None and is_readable(self._folder):
            self._maps = read_maps(self._folder)
        maps = self._maps
        if maps is None:
            self.is_known = self.is_known and not samples
            return False
        return any(class_of(maps.name_of(sample.pc)) == PYTHON for sample in samples)

    def close(self) -> None:
        """End the sampling."""
        self._clock.close()


def find_runs(proc: str, pids: Sequence[int], seconds: float) -> Iterator[tuple[int, bool]]:
    """Yield each process with whether it ran Python: as soon as it did, or in the end."""
    end = time.monotonic() + seconds
    left: dict[int, MainThread] = {}
    for pid in pids:
        with contextlib.suppress(PerfError):
            left[pid] = MainThread(proc, pid)
    while left and (left_s := end - time.monotonic()) > 0:
        time.sleep(min(left_s, DRAIN_S))
        for pid, thread in list(left.items()):
            try:
                if not thread.ran():
                    continue
                yield pid, True
            except OSError:
                pass  # it has ended, or may not be read
            # No more samples than needed: each costs the thread some microseconds.
            left.pop(pid).close()
    for pid, thread in left.items():
        thread.close()
        if thread.is_known:
            yield pid, False


def main() -> None:
    """Answer for every process that can be sampled."""
    proc, seconds, *words = sys.argv[1:]
    for pid, ran in find_runs(proc, list(map(int, words)), float(seconds)):
        print(json.dumps({"pid": pid, "ran_python": ran}), flush=True)
