"""The GPUs of this machine, read by the agent's own collector, and loads for one of them."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from agent.collectors.gpu.collector import Nvml
from agent.collectors.gpu.reading import ABSENT, DRIVER_FILES
from agent.collectors.gpu.report import GpuState

PROGRAM = Path(__file__).with_name("load_program.py")

CHOSEN = "WATCHTOWER_TEST_GPU"
"""Variable with the number of the GPU that gets the loads."""

STARTS_S = 60.0
"""Seconds for the driver's first answers, and for torch to be imported."""

SETTLES_S = 8.0
"""Seconds until a pattern is that of a new load: its window, and the driver's own mean."""

States = dict[str, Callable[[], AbstractContextManager[int | None]]]
"""Load by name. Each one returns the pid of the process that makes the load, if any."""


class NoGpuError(Exception):
    """There is no GPU to test."""


class LoadError(Exception):
    """The load could not be started."""


class RealGpus:
    """A collector, and the GPU that is measured."""

    def __init__(self, root: str = "/") -> None:
        """Raises `NoGpuError`."""
        if not any(os.path.exists(os.path.join(root, each)) for each in DRIVER_FILES):
            raise NoGpuError("this machine has no NVIDIA driver (/proc/driver/nvidia is missing)")
        self.collector = Nvml(root)
        self.index = int(os.environ.get(CHOSEN, "0"))
        self._wait_for_values()

    def collect(self) -> GpuState:
        """Read what was printed since the last call."""
        list(self.collector.collect(time.monotonic()))
        return self.state

    @property
    def state(self) -> GpuState:
        """The GPU that is measured. Raises `NoGpuError` without it."""
        gpus = self.collector._gpus
        if self.index not in gpus:
            raise NoGpuError(f"NVML shows no GPU {self.index} ({len(gpus)} GPUs)")
        return gpus[self.index]

    @property
    def all_states(self) -> list[GpuState]:
        """All GPUs of the machine."""
        return list(self.collector._gpus.values())

    def watch(self, seconds: float) -> list[dict[str, float]]:
        """Return the values of each second."""
        seen: list[dict[str, float]] = []
        last = -1.0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            state = self.collect()
            if state.read_at > last:
                last = state.read_at
                seen.append(dict(state.reading.values))
            time.sleep(0.1)
        return seen

    def pattern(self) -> str:
        """Return what the GPU does, in the agent's words."""
        return self.state.find_pattern(time.monotonic()).value

    def stop(self) -> None:
        """End the reader."""
        self.collector.stop()

    def _wait_for_values(self) -> None:
        end = time.monotonic() + STARTS_S
        while time.monotonic() < end:
            list(self.collector.collect(time.monotonic()))
            process = self.collector._process
            if process.state in ABSENT:
                raise NoGpuError(f"the driver shows no GPU ({process.state})")
            if self.collector.gap():
                raise NoGpuError(self.collector.gap())
            gpus = self.collector._gpus
            if gpus and all("memory_used_bytes" in each.reading.values for each in gpus.values()):
                return
            time.sleep(0.2)
        raise NoGpuError(f"NVML did not answer within {STARTS_S:.0f} s")


@contextmanager
def idle() -> Iterator[None]:
    """Make no load."""
    yield None


def find_states(uuid: str) -> States:
    """Return the loads that can be made on a GPU: without torch, only none."""
    states: States = {"idle": idle}
    if find_spec("torch") is not None:
        states |= {kind: partial(run_load, kind, uuid) for kind in ("spinning", "working")}
    return states


@contextmanager
def run_load(kind: str, uuid: str) -> Iterator[int]:
    """Run a load, and return the pid of its process. Raises `LoadError`."""
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": uuid},
    ) as load:
        assert load.stdin is not None
        assert load.stdout is not None
        assert load.stderr is not None
        try:
            if load.stdout.readline() != "ready\n":
                raise LoadError(load.stderr.read()[-2000:] or "torch cannot use this GPU")
            yield load.pid
        finally:
            load.stdin.close()


def describe(values: list[float], unit: str = "") -> str:
    """Return "0.98 (0.97 to 1)": the median and the range."""
    if not values:
        return "-"
    low, high = min(values), max(values)
    middle = f"{statistics.median(values):.4g}{unit}"
    return middle if low == high else f"{middle} ({low:.4g} to {high:.4g})"
