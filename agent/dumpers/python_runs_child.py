"""Counts in which libraries main threads run for some seconds, in a separate process that can be
abandoned.

The arguments are the path of /proc, the seconds, and the processes. A line answers a process:
{"pid": 4711, "leaves": {"libcuda.so.1": 290, "libpython3.11.so.1.0": 8}}. A process whose thread
cannot be sampled has none.

The samples are program counters only: nothing of the target is stopped or read meanwhile. Its
mappings are read in the end, because such a read may hang. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from agent.dumpers.mappings import GENERATED, Maps
from agent.dumpers.native_child import MAX_MAPS_BYTES
from agent.dumpers.perf_clock import PerfClock, PerfError

PERIOD_NS = 1_000_000
"""Nanoseconds of CPU time between two samples. A step runs Python for some milliseconds."""

DRAIN_S = 0.1
"""Seconds between two reads of the ring buffers. One has room for 0.3 s of a running thread."""


def main() -> None:
    """Answer for every process that can be sampled."""
    proc, seconds, *words = sys.argv[1:]
    for pid, counters in count(list(map(int, words)), float(seconds)).items():
        with contextlib.suppress(OSError):
            with Path(f"{proc}/{pid}/maps").open("rb") as file:
                maps = Maps(file.read(MAX_MAPS_BYTES).decode("utf-8", "replace"))
            leaves = Counter[str]()
            for pc, number in counters.items():
                leaves[maps.name_of(pc) or GENERATED] += number
            print(json.dumps({"pid": pid, "leaves": leaves}), flush=True)


def count(pids: Sequence[int], seconds: float) -> dict[int, Counter[int]]:
    """Return how often the main thread of each process was at each program counter."""
    end = time.monotonic() + seconds
    clocks: dict[int, PerfClock] = {}
    for pid in pids:
        with contextlib.suppress(PerfError):
            clocks[pid] = PerfClock(pid, period_ns=PERIOD_NS, stack_bytes=0)
    counters: dict[int, Counter[int]] = {pid: Counter() for pid in clocks}
    while (left_s := end - time.monotonic()) > 0:
        time.sleep(min(left_s, DRAIN_S))
        for pid, clock in clocks.items():
            counters[pid].update(sample.pc for sample in clock.drain())
    for clock in clocks.values():
        clock.close()
    return counters
