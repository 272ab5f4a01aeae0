"""Program: reads all GPUs of the node through NVML, and prints what it read as lines of JSON.

A call to NVML may block for ever in the driver. Therefore this is a process of its own, and other
threads than the main one make the calls (the binding releases the interpreter during a call). The
main thread prints one line a second. For a GPU whose call does not return it prints the name of the
call and since when. The process ends when its input is closed.

Only the standard library and the binding (`pynvml` of nvidia-ml-py) are imported.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.collectors.gpu.device import FAST_S, SLACK_S, STATES, UNSUPPORTED, Gpu, read_text

LATE_S = 0.3
"""A GPU that is due for so long, and that no thread reads, needs another thread."""


class Workers:
    """At most one thread waits for the next read. Each other one is in a call of its own GPU."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = gpus
        self._lock = threading.Lock()
        self._read: set[Gpu] = set()
        """GPUs that a thread reads at present."""
        self._has_waiting = False
        """Whether a thread waits for the next read."""
        self._start()

    def watch(self, now: float) -> None:
        """Start another thread if no thread comes to a GPU that is due."""
        with self._lock:
            late = any(now - each.due_at > LATE_S for each in self._gpus if each not in self._read)
            if not late or self._has_waiting:
                return
        self._start()

    def _start(self) -> None:
        threading.Thread(target=self._work, name="gpus", daemon=True).start()

    def _work(self) -> None:
        self._read_due()
        while self._wait():
            self._read_due()

    def _read_due(self) -> None:
        """Read all GPUs that are due and that no other thread reads."""
        now = time.monotonic()
        for gpu in self._gpus:
            with self._lock:
                if gpu in self._read or gpu.due_at > now + SLACK_S:
                    continue
                self._read.add(gpu)
            try:
                gpu.read(now)
            finally:
                with self._lock:
                    self._read.discard(gpu)

    def _wait(self) -> bool:
        """Wait for the next read. Return False if another thread waits already."""
        with self._lock:
            if self._has_waiting:
                return False
            self._has_waiting = True
            due = [gpu.due_at for gpu in self._gpus if gpu not in self._read]
        rest_s = min(due) - time.monotonic() if due else FAST_S
        time.sleep(min(FAST_S, max(SLACK_S, rest_s)))
        with self._lock:
            self._has_waiting = False
        return True


XID_EVENT = 8
"""`nvmlEventTypeXidCriticalError`."""

WAIT_MS = 10_000
"""Milliseconds of one wait. It ends with the first error, and with the process."""

REST_S = 1.0
"""Seconds between two waits that fail at once, for as long as a GPU is lost, and until the next try
after another error."""

GAP_FAILURES = 5
"""Tries in turn that fail until Xid errors count as not read: a driver that restarts takes some
seconds."""

LATER_RESTS = 60
"""Rests between two tries from then on. A try makes some calls for each GPU."""

MAX_XIDS = 16
"""Xid errors that are printed, the newest."""


class XidEvents(threading.Thread):
    """Where the kernel log may not be read, no other source has Xid errors. NVML names neither a
    process nor a text, and repeats nothing."""

    def __init__(self, nvml: Any, count: int, rest_s: float = REST_S) -> None:
        super().__init__(name="xids", daemon=True)
        self._nvml, self._count, self._rest_s = nvml, count, rest_s
        self._found: deque[tuple[str, int, float]] = deque(maxlen=MAX_XIDS)
        self._failures = 0
        """Tries in turn that failed."""
        self.error = ""
        """Why Xid errors are not read; empty if they are, or if the driver has no events."""

    def run(self) -> None:
        """Wait until the process ends. A driver without events has none."""
        nvml = self._nvml
        while True:
            try:
                self._watch()
            except nvml.NVMLError as error:
                if error.value in UNSUPPORTED:
                    return
                self._failures += 1
                if self._failures >= GAP_FAILURES:
                    self.error = f"error {error.value}"
            time.sleep(self._rest_s * (1 if self._failures < GAP_FAILURES else LATER_RESTS))

    def _watch(self) -> None:
        """Wait for errors until a call fails. Raises the error of that call."""
        nvml = self._nvml
        events = nvml.nvmlEventSetCreate()
        try:
            for index in range(self._count):
                with contextlib.suppress(nvml.NVMLError):
                    gpu = nvml.nvmlDeviceGetHandleByIndex(index)
                    if nvml.nvmlDeviceGetSupportedEventTypes(gpu) & XID_EVENT:
                        nvml.nvmlDeviceRegisterEvents(gpu, XID_EVENT, events)
            while True:
                self._wait(events)
                self._failures, self.error = 0, ""
        finally:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlEventSetFree(events)

    def _wait(self, events: Any) -> None:
        nvml = self._nvml
        try:
            event = nvml.nvmlEventSetWait_v2(events, WAIT_MS)
        except nvml.NVMLError_Timeout:
            return
        except nvml.NVMLError_GpuIsLost:
            time.sleep(self._rest_s)
            return
        if event.eventType == XID_EVENT:
            with contextlib.suppress(nvml.NVMLError):
                pci = read_text(nvml.nvmlDeviceGetPciInfo(event.device).busId)
                self._found.append((pci, int(event.eventData), time.monotonic()))

    def show(self, now: float) -> list[tuple[str, int, float]]:
        """Return the PCI address, the code and the age of each error, the newest last."""
        return [(pci, code, round(now - at, 3)) for pci, code, at in tuple(self._found)]


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


def main() -> None:
    """Print lines until the input is closed, or until there is nothing to read.

    The argument is the pid of the agent.
    """
    agent = sys.argv[1]
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
