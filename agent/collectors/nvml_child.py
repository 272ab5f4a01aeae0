"""Program: reads all GPUs of the node through NVML, and prints what it read as lines of JSON.

    python agent/collectors/nvml_child.py PID_OF_THE_AGENT

A call to NVML may block for ever in the driver. Therefore this is a process of its own, and each
GPU has a thread of its own (the binding releases the interpreter during a call). The main thread
prints one line a second. For a GPU whose call does not return it prints the name of the call and
since when. The process ends when its input is closed.

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAME = "wtgpu-"
"""Begin of the name of the process; the pid of its agent follows. The name outlives the command."""

FAST_S, COUNTED_S, SLOW_S, RARE_S = 1.0, 2.0, 10.0, 60.0
"""Seconds between two reads: of the load; of the counters of its units; of errors and processes; of
what seldom changes."""

MAX_GPUS = 32
MAX_PROCESSES = 64
"""Processes of one GPU that are printed."""

FIELDS = {
    "ecc_corrected": 3,
    "ecc_uncorrected": 4,
    "nvlink_crc_flit": 38,
    "nvlink_crc_data": 45,
    "nvlink_replay": 52,
    "nvlink_recovery": 59,
    "pcie_replays": 94,
    "recovery_action": 230,
}
"""Numbers of `nvmlDeviceGetFieldValues`: totals since the driver was loaded, and the action that
the driver recommends."""

UNITS = {"tensor_active": 5, "dram_active": 10}
"""Numbers of GPM metrics: percent of the time, or of the bandwidth."""

_OF_TYPE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of the union with the value of a field, by its type."""

_STATES = {
    9: "no_driver",
    12: "no_library",
    15: "lost",
    16: "reset_required",
    18: "driver_mismatch",
    28: "lost",
}
"""Error codes of NVML that are states of the node or of a GPU."""

_UNSUPPORTED = (2, 3, 13, 25)
"""Codes of a call that this GPU or driver does not have: invalid argument, not supported, function
not found, argument version mismatch. The call is not made again."""


class Gpu(threading.Thread):
    """Reads one GPU."""

    def __init__(self, nvml: Any, index: int) -> None:
        super().__init__(name=f"gpu-{index}", daemon=True)
        self._nvml, self._index = nvml, index
        self._handle: Any = None
        self._unsupported: set[str] = set()
        self._reads: dict[Callable[[], None], tuple[float, float]] = {
            self._read_load: (FAST_S, 0.0),
            self._read_units: (COUNTED_S, 0.0),
            self._read_errors: (SLOW_S, 0.0),
            self._read_rare: (RARE_S, 0.0),
        }
        """Each read with its interval, and when it is due."""
        self._counted: list[Any] = []
        """The counters of the units before, and memory for those now."""
        self._values: dict[str, float] = {}
        self._names: dict[str, str] = {}
        self._processes: list[int] = []
        self._state = ""
        self._read_at = 0.0
        self.call, self.call_at = "", 0.0
        """The call that has not returned, and since when."""

    def run(self) -> None:
        """Read the GPU until the process ends."""
        while True:
            began = time.monotonic()
            self._read_due(began)
            time.sleep(max(0.05, FAST_S - (time.monotonic() - began)))

    def show(self, now: float) -> dict[str, object]:
        """Return the last values, and the call that has not returned."""
        call, call_at = self.call, self.call_at
        return {
            "index": self._index,
            "names": dict(self._names),
            "values": dict(self._values),
            "processes": list(self._processes),
            "state": self._state,
            "age_s": round(now - self._read_at, 3) if self._read_at else -1.0,
            "call": call,
            "call_s": round(now - call_at, 3) if call else 0.0,
        }

    def _read_due(self, now: float) -> None:
        self._state = self._find() if self._handle is None else ""
        if self._handle is None:
            return
        for read, (interval_s, due_at) in self._reads.items():
            if now >= due_at:
                self._reads[read] = interval_s, now + interval_s - 0.05
                read()
        if not self._state:
            self._read_at = time.monotonic()

    def _find(self) -> str:
        """Get the handle and the names of the GPU. Return its state if that fails."""
        nvml, self._state = self._nvml, ""
        handle = self._call(nvml.nvmlDeviceGetHandleByIndex, self._index)
        if handle is None:
            return self._state or "unknown"
        pci = self._call(nvml.nvmlDeviceGetPciInfo, handle)
        if pci is not None:
            self._names["pci"] = _text(pci.busId)
        for name, call in (("uuid", nvml.nvmlDeviceGetUUID), ("model", nvml.nvmlDeviceGetName)):
            found = self._call(call, handle)
            if found is not None:
                self._names[name] = _text(found)
        self._handle = handle
        return ""

    def _read_load(self) -> None:
        nvml, gpu = self._nvml, self._handle
        used = self._call(nvml.nvmlDeviceGetUtilizationRates, gpu)
        self._put("utilization", used and used.gpu, 0.01)
        self._put("memory_utilization", used and used.memory, 0.01)
        self._put("power_w", self._call(nvml.nvmlDeviceGetPowerUsage, gpu), 1e-3)
        clock = self._call(nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_SM)
        self._put("sm_clock_hz", clock, 1e6)
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        reasons = reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        self._put("clock_reasons", self._call(reasons, gpu))

    def _read_units(self) -> None:
        """Read how busy the tensor cores and the memory were since the last read.

        GPUs before Hopper do not have these counters.
        """
        values = self._count_units()
        for name in UNITS:
            self._put(name, values.get(name))

    def _count_units(self) -> dict[str, float]:
        nvml, gpu = self._nvml, self._handle
        if not self._counted:
            support = self._call(nvml.nvmlGpmQueryDeviceSupport, gpu)
            if support is None or not support.isSupportedDevice:
                self._reads[self._read_units] = RARE_S, float("inf")
                return {}
            made = [self._call(nvml.nvmlGpmSampleAlloc) for _ in range(2)]
            if None not in made and self._call(nvml.nvmlGpmSampleGet, gpu, made[0]) is not None:
                self._counted = made
            return {}
        before, now = self._counted
        if self._call(nvml.nvmlGpmSampleGet, gpu, now) is None:
            return {}
        self._counted = [now, before]
        wanted = nvml.c_nvmlGpmMetricsGet_t()
        wanted.version, wanted.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(UNITS)
        wanted.sample1, wanted.sample2 = before, now
        for metric, number in zip(wanted.metrics, UNITS.values(), strict=False):
            metric.metricId = number
        if self._call(nvml.nvmlGpmMetricsGet, wanted) is None:
            return {}
        pairs = zip(UNITS, wanted.metrics, strict=False)
        return {name: metric.value / 100 for name, metric in pairs if metric.nvmlReturn == 0}

    def _read_errors(self) -> None:
        nvml, gpu = self._nvml, self._handle
        memory = self._call(nvml.nvmlDeviceGetMemoryInfo, gpu)
        self._put("memory_used_bytes", memory and memory.used)
        self._put("memory_bytes", memory and memory.total)
        heat = self._call(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU)
        self._put("temperature_c", heat)
        self._put("energy_j", self._call(nvml.nvmlDeviceGetTotalEnergyConsumption, gpu), 1e-3)
        running = self._call(nvml.nvmlDeviceGetComputeRunningProcesses, gpu)
        if running is not None:
            self._processes = [int(each.pid) for each in running[:MAX_PROCESSES]]
        fields = self._call(nvml.nvmlDeviceGetFieldValues, gpu, list(FIELDS.values()))
        for name, field in zip(FIELDS, fields or [None] * len(FIELDS), strict=False):
            is_read = field and field.nvmlReturn == 0 and field.valueType < len(_OF_TYPE)
            self._put(name, getattr(field.value, _OF_TYPE[field.valueType]) if is_read else None)

    def _read_rare(self) -> None:
        nvml, gpu = self._nvml, self._handle
        self._put("power_limit_w", self._call(nvml.nvmlDeviceGetEnforcedPowerLimit, gpu), 1e-3)
        rows = self._call(nvml.nvmlDeviceGetRemappedRows, gpu)
        words = ("remapped_corrected", "remapped_uncorrected", "remap_pending", "remap_failed")
        for word, count in zip(words, rows or [None] * len(words), strict=True):
            self._put(word, count)

    def _put(self, name: str, value: float | None, factor: float = 1.0) -> None:
        """Set a value. One that could not be read is dropped: it must not look new."""
        if value is None:
            self._values.pop(name, None)
        else:
            self._values[name] = value * factor

    def _call(self, call: Callable[..., Any], *arguments: object) -> Any:
        """Return the result of a call, or None if the call fails or was found to be unsupported.

        Some errors set the state of the GPU.
        """
        name = call.__name__
        if name in self._unsupported or self._state in ("lost", "reset_required"):
            return None
        self.call_at, self.call = time.monotonic(), name
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in _UNSUPPORTED:
                self._unsupported.add(name)
            self._state = _STATES.get(error.value, self._state)
            return None
        finally:
            self.call = ""


class Init(threading.Thread):
    """Loads the library and finds the GPUs. Both may block."""

    def __init__(self) -> None:
        super().__init__(name="init", daemon=True)
        self.call, self.call_at = "nvmlInit", time.monotonic()
        self.state, self.driver = "", ""
        self.gpus: list[Gpu] = []
        self.nvml: Any = None

    def run(self) -> None:
        """Start a thread for each GPU, or set `state`."""
        try:
            import pynvml  # noqa: PLC0415  # only this process may load the driver's library
        except ImportError:
            self.state, self.call = "no_binding", ""
            return
        self.nvml = pynvml
        try:
            pynvml.nvmlInit()
            self.driver = _text(pynvml.nvmlSystemGetDriverVersion())
            count = min(MAX_GPUS, pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            self.state, self.call = _STATES.get(error.value, f"error {error.value}"), ""
            return
        self.gpus = [Gpu(pynvml, index) for index in range(count)]
        for gpu in self.gpus:
            gpu.start()
        self.state, self.call = "" if count else "no_gpus", ""


def _text(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text[:96]


def main() -> None:
    """Print lines until the input is closed, or until there is nothing to read."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(NAME + sys.argv[-1], encoding="ascii")
    init = Init()
    init.start()
    init.join(0.5)
    while True:
        now = time.monotonic()
        shown = {
            "state": init.state,
            "driver": init.driver,
            "call": init.call,
            "call_s": round(now - init.call_at, 3) if init.call else 0.0,
            "gpus": [gpu.show(now) for gpu in init.gpus],
        }
        try:
            sys.stdout.write(json.dumps(shown) + "\n")
            sys.stdout.flush()
        except OSError:
            break
        is_closed = select.select([0], [], [], FAST_S)[0] and not os.read(0, 1)
        if is_closed or init.state:
            break
    if init.nvml is not None and not init.state and not any(gpu.call for gpu in init.gpus):
        # A thread may begin a call now. The end of the process waits for it no longer than below.
        threading.Thread(target=init.nvml.nvmlShutdown, daemon=True).start()
        time.sleep(0.1)
    os._exit(0)


if __name__ == "__main__":
    main()
