"""Reads one GPU: each kind of value at its own interval."""

from __future__ import annotations

import contextlib
import ctypes
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

FIELDS = {
    "ecc_corrected": 3,
    "ecc_uncorrected": 4,
    "ecc_lifetime_corrected": 5,
    "ecc_lifetime_uncorrected": 6,
    "nvlink_crc_flit": 38,
    "nvlink_crc_data": 45,
    "nvlink_replay": 52,
    "nvlink_recovery": 59,
    "nvlinks": 91,
    "pcie_replays": 94,
    "nvlink_malformed": 206,
    "nvlink_integrity": 211,
    "nvlink_link_recovery": 215,
    "recovery_action": 230,
}
"""Fields of one batch of `nvmlDeviceGetFieldValues`: totals since the driver was loaded, of memory
also since the GPU was made; the number of its NVLinks; and what the driver recommends."""

RARE_FIELDS = {
    "retired_single_bit": 29,
    "retired_double_bit": 30,
    "retirement_pending": 31,
}
"""Fields of the batch that is read seldom: pages of memory that GPUs before Ampere retire."""

LINK_STATE = 165
"""Field with the state of one NVLink, on Hopper and later; the scope is the number of the link."""

LINK_OFF = 0
"""State of a link that is down. The others are states of a link that is up: active, asleep, active
without traffic."""

MAX_LINKS = 36
"""`NVML_NVLINK_MAX_LINKS`."""

_MIB = 1 << 20

UNITS = {
    "sm_active": (2, 0.01),
    "tensor_active": (5, 0.01),
    "dram_active": (10, 0.01),
    "nvlink_received_per_s": (60, _MIB),
    "nvlink_sent_per_s": (61, _MIB),
}
"""Numbers of GPM metrics, and what one of their units (percent, or MiB a second) is in ours."""

OF_TYPE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of the union with the value of a field, by its type."""

UTILIZATION_SAMPLES = 1
"""`NVML_GPU_UTILIZATION_SAMPLES`: the driver's own samples, some six a second."""

STATES = {
    9: "no_driver",
    12: "no_library",
    15: "lost",
    16: "reset_required",
    18: "driver_mismatch",
    28: "lost",
}
"""Error codes of NVML that are states of the node or of a GPU."""

NOT_FOUND = 6
"""Code of a call that finds nothing: the driver has no newer sample."""

UNSUPPORTED = (2, 3, 13, 25)
"""Codes of a call that this GPU or driver does not have: invalid argument, not supported, function
not found, argument version mismatch. The call is not made again."""


FAST_S, COUNTED_S, SLOW_S, RARE_S = 1.0, 2.0, 10.0, 60.0
"""Seconds between two reads: of the load; of the counters of its units; of errors and processes; of
what seldom changes."""

SLACK_S = 0.1
"""A read that is due so soon is made now: one wakeup reads all GPUs."""

MAX_READ_PROCESSES = 64
"""Processes of one GPU that are printed."""

MAX_VALUE = 1e18
"""Larger numbers are taken for errors of the driver. A report may contain none above this."""

CALL_BUCKETS_S = (0.0001, 0.001, 0.01, 0.1, 1.0)
"""Ends of the buckets of the durations of calls. Most take some microseconds; calls that ask the
GPU's firmware may take seconds."""


class Gpu:
    """One GPU. It is read by one thread at a time; another one shows it."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml, self._index = nvml, index
        self._handle: Any = None
        self._unsupported: set[str] = set()
        self._code = 0
        """Error code of the last call; 0 if it returned a result."""
        self._reads: dict[Callable[[], None], tuple[float, float]] = {
            self._read_load: (FAST_S, 0.0),
            self._read_units: (COUNTED_S, 0.0),
            self._read_errors: (SLOW_S, 0.0),
            self._read_rare: (RARE_S, 0.0),
        }
        """Each read with its interval, and when it is due."""
        self._counted: list[Any] = []
        """The counters of the units before, and memory for those now."""
        self._sampled_at = 0
        """Time of the newest sample of the driver, in microseconds."""
        self._values: dict[str, float] = {}
        self._names: dict[str, str] = {}
        self._processes: list[int] = []
        self._state = ""
        self._read_at = 0.0
        self.due_at = 0.0
        """When it is to be read again."""
        self.durations: dict[str, list[float]] = {}
        """By kind of call: the counts of its buckets, and the sum of seconds."""
        self._kind = "rare"
        self.call, self.call_at = "", 0.0
        """The call that has not returned, and since when."""

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

    def read(self, now: float) -> None:
        """Read what is due. If the binding cannot read an answer, the values stay and get old."""
        self.due_at = now + FAST_S
        with contextlib.suppress(Exception):
            self._read_due(now)

    def _read_due(self, now: float) -> None:
        self._state = self._find() if self._handle is None else ""
        if self._handle is None:
            return
        for read, (interval_s, due_at) in self._reads.items():
            if now >= due_at:
                self._reads[read] = interval_s, now + interval_s - SLACK_S
                self._kind = read.__name__.removeprefix("_read_")
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
            self._names["pci"] = read_text(pci.busId)
        for name, call in (("uuid", nvml.nvmlDeviceGetUUID), ("model", nvml.nvmlDeviceGetName)):
            found = self._call(call, handle)
            if found is not None:
                self._names[name] = read_text(found)
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
        """Read how busy the units and the NVLinks were since the last read.

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
        for metric, (number, _) in zip(wanted.metrics, UNITS.values(), strict=False):
            metric.metricId = number
        if self._call(nvml.nvmlGpmMetricsGet, wanted) is None:
            return {}
        found = zip(UNITS.items(), wanted.metrics, strict=False)
        return {name: each.value * unit for (name, (_, unit)), each in found if not each.nvmlReturn}

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
            self._processes = [int(each.pid) for each in running[:MAX_READ_PROCESSES]]
        self._read_fields(FIELDS)
        self._put("pcie_width", self._call(nvml.nvmlDeviceGetCurrPcieLinkWidth, gpu))
        rows = self._call(nvml.nvmlDeviceGetRemappedRows, gpu)
        words = ("remapped_corrected", "remapped_uncorrected", "remap_pending", "remap_failed")
        for word, count in zip(words, rows or [None] * len(words), strict=True):
            self._put(word, count)
        self._read_fabric()
        self._count_links()
        self._find_sample()

    def _read_fields(self, wanted: Mapping[str, int]) -> None:
        call, numbers = self._nvml.nvmlDeviceGetFieldValues, [*wanted.values()]
        fields = self._call(call, self._handle, numbers, key=next(iter(wanted)))
        for name, field in zip(wanted, fields or [None] * len(wanted), strict=False):
            self._put(name, _value_of(field))

    def _count_links(self) -> None:
        """Count the NVLinks that are up. GPUs before Hopper have a call for each link."""
        nvml, gpu = self._nvml, self._handle
        links = range(min(MAX_LINKS, int(self._values.get("nvlinks", 0))))
        states: list[float | None] = []
        if links:
            wanted = [(LINK_STATE, link) for link in links]
            fields = self._call(nvml.nvmlDeviceGetFieldValues, gpu, wanted, key="nvlinks")
            states = [_value_of(field) for field in fields or ()]
            if not states or states[0] is None:
                states = [self._call(nvml.nvmlDeviceGetNvLinkState, gpu, link) for link in links]
        is_known = bool(states) and None not in states
        up = sum(state != LINK_OFF for state in states)
        self._put("nvlinks_up", up if is_known else None)

    def _find_sample(self) -> None:
        """Find when the driver took its newest sample of the utilization."""
        call, last = self._nvml.nvmlDeviceGetSamples, self._sampled_at
        found = self._call(call, self._handle, UTILIZATION_SAMPLES, last)
        if found is not None:
            self._sampled_at = max((int(each.timeStamp) for each in found[1]), default=last)
        is_known = bool(self._sampled_at) and (found is not None or self._code == NOT_FOUND)
        self._put("sampled_at", self._sampled_at if is_known else None, 1e-6)

    def _read_rare(self) -> None:
        nvml, gpu = self._nvml, self._handle
        self._put("power_limit_w", self._call(nvml.nvmlDeviceGetEnforcedPowerLimit, gpu), 1e-3)
        mig = self._call(nvml.nvmlDeviceGetMigMode, gpu)
        self._put("mig", mig and mig[0])
        self._put("persistence", self._call(nvml.nvmlDeviceGetPersistenceMode, gpu))
        self._put("pcie_max_width", self._call(nvml.nvmlDeviceGetMaxPcieLinkWidth, gpu))
        self._read_fields(RARE_FIELDS)

    def _read_fabric(self) -> None:
        """Read whether the GPU has joined its NVLink fabric. Drivers have two layouts."""
        nvml, done, info = self._nvml, None, None
        for layout in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
            if done is None and (make := getattr(nvml, layout, None)):
                info = make()
                call, where = nvml.nvmlDeviceGetGpuFabricInfoV, ctypes.byref(info)
                done = self._call(call, self._handle, where, key=layout)
        known = info if done is not None else None
        # The driver's state is one byte, and the binding reads four.
        self._put("fabric_state", None if known is None else known.state & 0xFF)
        self._put("fabric_status", None if known is None else known.status)
        self._put("fabric_health", getattr(known, "healthSummary", None))

    def _put(self, name: str, value: float | None, factor: float = 1.0) -> None:
        """Set a value. One that could not be read is dropped: it must not look new.

        NVML has large numbers for values that it does not know, and none that is negative.
        """
        if value is None or not 0 <= value < MAX_VALUE:
            self._values.pop(name, None)
        else:
            self._values[name] = value * factor

    def _call(self, call: Callable[..., Any], *arguments: object, key: str = "") -> Any:
        """Return the result of a call, or None if the call fails or was found to be unsupported.

        Some errors set the state of the GPU. `key`: what is unsupported, if not the whole call.
        """
        name = call.__name__
        if (key or name) in self._unsupported or self._state in ("lost", "reset_required"):
            return None
        self.call_at, self.call, self._code = time.monotonic(), name, 0
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            self._code = error.value
            if error.value in UNSUPPORTED:
                self._unsupported.add(key or name)
            self._state = STATES.get(error.value, self._state)
            return None
        finally:
            self.call = ""
            self._count(time.monotonic() - self.call_at)

    def _count(self, seconds: float) -> None:
        counts = self.durations.setdefault(self._kind, [0.0] * (len(CALL_BUCKETS_S) + 2))
        counts[bisect_left(CALL_BUCKETS_S, seconds)] += 1
        counts[-1] += seconds


def _value_of(field: Any) -> float | None:
    """Return the value of a field; None if it was not read."""
    if field is None or field.nvmlReturn != 0 or field.valueType >= len(OF_TYPE):
        return None
    value: float = getattr(field.value, OF_TYPE[field.valueType])
    return value


def read_text(value: object) -> str:
    """Return a text of NVML, bounded."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text[:96]
