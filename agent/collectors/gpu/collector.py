"""Collector: the GPUs of the node by NVML: load, pattern, processes, errors of memory and links.

A child process makes all calls (`program.py`), because a call may block for ever in the
driver. A node without a driver or without GPUs is an ordinary node: nothing is reported as missing.

Each GPU has one observation with its pattern for each process that uses it. The process joins the
GPU to a rank, and with it the Xid errors of that GPU. Numbers go to the agent's own metrics only:
in a report they would cross the network every second.

NVML lists only GPUs that work. The PCI bus lists all that are plugged in: one that the driver could
not start is missing silently.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from agent.collectors.collector import Collector, Measured, Reading
from agent.collectors.gpu.metrics import (
    EXPECTED,
    METRICS,
    STUCK,
    VISIBLE,
    sample_calls,
    sample_names,
    sample_values,
)
from agent.collectors.gpu.reading import (
    ABSENT,
    NO_GPUS,
    NOT_INSTALLED,
    SILENT_S,
    GpuReading,
    NodeReading,
    NvmlProcess,
)
from agent.collectors.gpu.report import (
    FRESH_S,
    MAX_REPORTED_PROCESSES,
    SOURCE,
    GpuState,
    observe,
    observe_fabric,
    observe_gpu,
)
from agent.collectors.gpu.report import REPORTED_S as XIDS_REPORTED_S
from agent.procfs import Proc, read_text
from watchtower.service.metric_spec import Sample
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.observations import NODE, Observation, name_pci
from watchtower.writing.printable import printable

DEVICES = "sys/bus/pci/devices"

VENDOR = "0x10de"
CLASSES = ("0x0300", "0x0302")
"""Begin of the class of a display and of a 3D controller. NVSwitches and sound have others."""

DRIVER = "nvidia"
"""NVIDIA's driver. GPUs of any other driver belong to a virtual machine (vfio-pci and its
variants) or are not used with NVML (nouveau)."""

EVERY_S = 60.0
"""Seconds between two reads. GPUs are plugged in while the node is off; some are lost later."""

MAX_DEVICES = 4096
"""Devices of the bus that are read. A node has some hundred."""

MAX_BYTES = 64
"""Bytes read of a device's class and vendor. They have nine."""


class GpuCount:
    """Compares the GPUs of the bus with those that the driver shows."""

    def __init__(self, root: str = "/", environment: Mapping[str, str] = os.environ) -> None:
        self._folder = os.path.join(root, DEVICES)
        # A container with some of the node's GPUs sees the whole bus.
        self._sees_all = environment.get("NVIDIA_VISIBLE_DEVICES", "all") == "all"
        self._read_at = float("-inf")
        self._on_bus = 0
        self._most_shown = 0
        self._missing: tuple[int, float] | None = None
        """How many GPUs are missing, and since when."""

    @property
    def expected(self) -> int:
        """How many GPUs the node should have."""
        return max(self._on_bus, self._most_shown)

    def compare(self, shown: int, now: float) -> Iterator[Observation]:
        """Return an observation if the driver shows fewer GPUs than there should be."""
        self._most_shown = max(self._most_shown, shown)
        if now - self._read_at >= EVERY_S and self._sees_all:
            self._read_at = now
            self._on_bus = self._count()
        missing = self.expected - shown
        if not missing:
            self._missing = None
            return
        if self._missing is None or self._missing[0] != missing:
            self._missing = missing, now
        text = f"the driver shows {shown} of {self.expected} GPUs"
        yield observe(NODE, "gpus_missing", now - self._missing[1], value=missing, text=text)

    def _count(self) -> int:
        try:
            names = sorted(islice(os.listdir(self._folder), MAX_DEVICES))
        except OSError:
            return 0
        return sum(self._is_gpu(os.path.join(self._folder, name)) for name in names)

    def _is_gpu(self, device: str) -> bool:
        if not read_text(f"{device}/class", MAX_BYTES).startswith(CLASSES):
            return False
        if not read_text(f"{device}/vendor", MAX_BYTES).startswith(VENDOR):
            return False
        try:
            driver = os.path.basename(os.readlink(f"{device}/driver"))
        except OSError:
            return True  # no driver has taken it, so NVIDIA's could not start it
        return driver == DRIVER


STUCK_S = 3.0
"""A call of NVML that has not returned for so long is reported. Slow calls take some ms; a cold
driver answers the first one after 3 s."""

MAX_ERROR = 32
"""Characters of an error of the reader in a gap: "error 999"."""

MAX_XID = 99_999
"""A larger code is not one."""

LANES = (
    ("utilization", "%", 100.0, "utilization"),
    ("power", "W", 1.0, "power_w"),
    ("tensor", "%", 100.0, "tensor_active"),
    ("memory bandwidth", "%", 100.0, "dram_active"),
    ("clock", "MHz", 1e-6, "sm_clock_hz"),
)
"""Series of a GPU: name, unit, number of this unit in the unit of a reading, and its name there.
The smallest difference that matters is one unit."""


class Nvml(Collector):
    """Reads the GPUs of this node."""

    name = SOURCE
    metrics = METRICS

    def __init__(self, root: str = "/") -> None:
        self._process, self._proc = NvmlProcess(root), Proc(root)
        self._count = GpuCount(root)
        self._gpus: dict[int, GpuState] = {}
        self._node = NodeReading()
        self._read_at = float("-inf")
        self._collected_at = 0.0
        self._is_silent = False

    def collect(self, now: float) -> Iterator[Observation]:
        """Return the state of each GPU, joined to its processes, and recent errors."""
        self._collected_at = now
        reading = self._process.read(now)
        self._is_silent = self._process.is_silent(now)
        if reading is not None:
            self._node, self._read_at = reading, now
            self._gpus = {each.index: self._take(each, now) for each in reading.gpus}
        elif now - self._read_at > SILENT_S:
            self._gpus = {}
        if call := self._find_stuck(now):
            words = f"{call.call} of {call.where} has not returned"
            yield observe(call.subject, "nvml_stuck", call.age_s, text=words, pid=call.pid)
        if self.can_read or self._process.state == NO_GPUS:
            yield from self._count.compare(len(self._gpus), now)
        yield from self._observe_xids(now)
        for gpu in self._gpus.values():
            yield from observe_gpu(gpu, self._read_at, now, self._proc)
        yield from observe_fabric(self._gpus.values(), now)

    def _observe_xids(self, now: float) -> Iterator[Observation]:
        """Return the Xid errors of the last minutes. The kernel log may have the same ones."""
        for pci, code, read_s in self._node.xids:
            age_s = read_s + now - self._read_at
            if age_s <= XIDS_REPORTED_S and 0 <= code <= MAX_XID:
                text = f"NVML reports Xid {code}"
                yield observe(name_pci(pci), f"xid.{code}", age_s, text=text)

    def series(self) -> Iterator[Measured]:
        """Return the load of each GPU that was read in the last seconds."""
        for gpu in self._gpus.values():
            if gpu.is_fresh(self._collected_at):
                yield Measured(
                    subject=gpu.subject,
                    index=gpu.reading.index,
                    pids=tuple(gpu.reading.processes[:MAX_REPORTED_PROCESSES]),
                    readings=tuple(_read_lanes(gpu.reading.values)),
                )

    def samples(self, wall_now: float) -> Iterator[Sample]:
        """Return the values of all GPUs that were read in the last seconds."""
        now = self._collected_at
        if not self._gpus and not self.can_read and not self._count.expected:
            return
        yield Sample(VISIBLE, (), len(self._gpus))
        yield Sample(EXPECTED, (), self._count.expected)
        stuck = self._find_stuck(now)
        yield Sample(STUCK, (), stuck.age_s if stuck else 0.0)
        yield from sample_calls(self._node)
        for gpu in self._gpus.values():
            label, pattern = gpu.subject.removeprefix("pci:"), gpu.find_pattern(now)
            yield from sample_names(label, pattern, gpu.reading, self._node.driver)
            if gpu.is_fresh(now):
                yield from sample_values(label, gpu.reading)

    def facts(self) -> dict[str, str]:
        """Return the models, the NVLinks that are up, and whether the driver stays loaded."""
        found: dict[str, list[str]] = {}
        for gpu in self._gpus.values():
            values, names = gpu.reading.values, gpu.reading.names
            found.setdefault("gpus", []).append(names.get("name", ""))
            if values.get("nvlinks"):
                up = f"{values.get('nvlinks_up', 0):.0f} of {values['nvlinks']:.0f}"
                found.setdefault("nvlinks up", []).append(up)
            if "persistence" in values:
                state = "on" if values["persistence"] else "off"
                found.setdefault("persistence mode", []).append(state)
        return {name: _count_equal(values) for name, values in found.items()}

    @property
    def can_read(self) -> bool:
        """Whether NVML answered in the last seconds."""
        is_recent = self._collected_at - self._read_at <= FRESH_S
        return is_recent and not self._node.state and not self._node.call

    @property
    def has_values(self) -> bool:
        """Whether each GPU was read at least once."""
        return bool(self._gpus) and all(each.was_read for each in self._gpus.values())

    @property
    def is_absent(self) -> bool:
        """Whether the node has no GPU or no driver."""
        return self._process.state in ABSENT

    def gap(self) -> str:
        """Return why GPUs are not observed; empty on a node without GPUs."""
        stuck = self._find_stuck(self._collected_at)
        if stuck:
            return (
                f"GPUs: {stuck.call} of {stuck.where} has not returned for {stuck.age_s:.0f} s: "
                "the driver does not answer (see the kernel log; most such nodes need a reboot)"
            )
        if self._is_silent:
            return f"GPUs: the program that reads them has printed nothing for {SILENT_S:.0f} s"
        state = self._process.state
        if state.startswith("stuck"):
            return (
                f"GPUs: they are not read, because a GPU reader of an earlier agent is still in a "
                f"call of the driver ({state.removeprefix('stuck: ')})"
            )
        if state == "driver_mismatch":
            return "GPUs: the driver was changed and the old one is still loaded: reboot the node"
        if state in NOT_INSTALLED:
            return f"GPUs: {NOT_INSTALLED[state]}"
        if state and state not in ABSENT:
            return f"GPUs: NVML cannot be used ({state})"
        if self._node.xids_error:
            error = self._node.xids_error[:MAX_ERROR]
            return f"GPUs: NVML reports no Xid errors ({error}): only the kernel log shows them"
        return ""

    def stop(self) -> None:
        """Ask the child to end. One that is in a call of the driver is left behind."""
        self._process.stop()

    def _take(self, reading: GpuReading, now: float) -> GpuState:
        gpu = self._gpus.get(reading.index) or GpuState(reading)
        gpu.take(reading, now)
        return gpu

    def _find_stuck(self, now: float) -> _Call | None:
        """Return the call that has not returned for longest, if that is long."""
        since_s = now - self._read_at
        node = self._node
        calls = [_Call(node.call, node.call_s + since_s, "the driver", NODE)] if node.call else []
        calls += [
            _Call(
                each.reading.call,
                each.reading.call_s + since_s,
                f"GPU {each.reading.index}",
                each.subject,
                next(iter(each.reading.processes), None),
            )
            for each in self._gpus.values()
            if each.reading.call
        ]
        late = [call for call in calls if call.age_s >= STUCK_S and since_s < SILENT_S]
        return max(late, key=lambda call: call.age_s, default=None)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that has not returned."""

    call: str
    age_s: float
    where: str
    subject: str
    pid: int | None = None
    """A process that uses the GPU."""


def _count_equal(values: Iterable[str]) -> str:
    """Return "8 x on"; "7 x on, 1 x off"."""
    counts = Counter(values).most_common(MAX_FACT_VALUES)
    return printable(", ".join(f"{count} x {value}" for value, count in counts), MAX_NAME)


MAX_FACT_VALUES = 4
"""Values of one fact of all GPUs. They have one."""


def _read_lanes(values: Mapping[str, float]) -> Iterator[Reading]:
    for name, unit, factor, key in LANES:
        if key in values:
            yield Reading(name, unit, 1.0, factor * values[key])
