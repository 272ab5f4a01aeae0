"""Program: reads all GPUs of the node through NVML, and prints what it read as lines of JSON.

A call to NVML may block for ever in the driver. Therefore this is a process of its own, and other
threads than the main one make the calls (the binding releases the interpreter during a call). The
main thread prints one line a second. For a GPU whose call does not return it prints the name of the
call and since when. The process ends when its input is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.gpu_reader.fields import STATES
from agent.gpu_reader.gpu import FAST_S, Gpu, read_text
from agent.gpu_reader.workers import LATE_S, Workers
from agent.gpu_reader.xids import XidEvents

NAME = "wtgpu-"
"""Begin of the name of the process; the pid of its agent follows. The name outlives the command."""

MAX_GPUS = 32
"""GPUs of a node that are read. The largest nodes have 16."""

STARTS_S = 2.0
"""Seconds of a call in which the threads for the other GPUs are started."""


class Init(threading.Thread):
    """Loads the library and finds the GPUs. Both may block."""

    def __init__(self) -> None:
        super().__init__(name="init", daemon=True)
        self.call, self.call_at = "nvmlInit", time.monotonic()
        self.state, self.driver = "", ""
        self.gpus: list[Gpu] = []
        self.workers: Workers | None = None
        self.xids: XidEvents | None = None
        self.nvml: Any = None

    def run(self) -> None:
        """Start the threads that read the GPUs, or set `state`."""
        try:
            import pynvml  # noqa: PLC0415  # only this process may load the driver's library
        except ImportError:
            self.state, self.call = "no_binding", ""
            return
        self.nvml = pynvml
        try:
            pynvml.nvmlInit()
            self.driver = read_text(pynvml.nvmlSystemGetDriverVersion())
            count = min(MAX_GPUS, pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            self.state, self.call = STATES.get(error.value, f"error {error.value}"), ""
            return
        self.gpus = [Gpu(pynvml, index) for index in range(count)]
        self.workers = Workers(self.gpus)
        self.xids = XidEvents(pynvml, count)
        self.xids.start()
        self.state, self.call = "" if count else "no_gpus", ""

    def show(self, now: float) -> dict[str, object]:
        """Return one line."""
        return {
            "state": self.state,
            "driver": self.driver,
            "call": self.call,
            "call_s": round(now - self.call_at, 3) if self.call else 0.0,
            "gpus": [gpu.show(now) for gpu in self.gpus],
            "xids": self.xids.show(now) if self.xids else [],
            "xids_error": self.xids.error if self.xids else "",
            "durations": _add_up([gpu.durations for gpu in self.gpus]),
        }


def _add_up(each: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """Return the sums over all GPUs."""
    total: dict[str, list[float]] = {}
    for durations in each:
        for kind, counts in list(durations.items()):
            before = total.get(kind, [0.0] * len(counts))
            total[kind] = [a + b for a, b in zip(before, counts, strict=True)]
    return total


def _wait(init: Init, until: float) -> bool:
    """Wait for the next line. Return whether the input was closed.

    While a call lasts, another thread for the other GPUs may be needed sooner than that.
    """
    while (now := time.monotonic()) < until:
        if init.workers is not None:
            init.workers.watch(now)
        is_slow = any(gpu.call and now - gpu.call_at < STARTS_S for gpu in init.gpus)
        wait_s = min(until - now, LATE_S) if is_slow else until - now
        if select.select([0], [], [], wait_s)[0]:
            return not os.read(0, 1)
    return False


def main(agent: str) -> None:
    """Print lines until the input is closed, or until there is nothing to read.

    `agent`: pid of the agent.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(NAME + agent, encoding="ascii")
    init = Init()
    init.start()
    init.join(0.5)
    while True:
        now = time.monotonic()
        try:
            sys.stdout.write(json.dumps(init.show(now)) + "\n")
            sys.stdout.flush()
        except OSError:
            break
        if _wait(init, now + FAST_S) or init.state:
            break
    if init.nvml is not None and not init.state and not any(gpu.call for gpu in init.gpus):
        # A thread may begin a call now. The end of the process waits for it no longer than below.
        threading.Thread(target=init.nvml.nvmlShutdown, daemon=True).start()
        time.sleep(0.1)
    os._exit(0)
