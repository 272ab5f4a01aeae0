"""Collector: the GPUs of the node by NVML: load, pattern, processes, errors of memory and links.

A child process makes all calls (`nvml_child`), because a call may block for ever in the driver. A
node without a driver or without GPUs is an ordinary node: nothing is reported as missing.

Each GPU has one observation with its pattern for each process that uses it. The process joins the
GPU to a rank, and with it the Xid errors of that GPU. Numbers go to the agent's own metrics only:
in a report they would cross the network every second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agent.collectors.collector import Measured, Reading
from agent.collectors.gpu_pattern import Load, Pattern, find_pattern
from agent.collectors.nvml_metrics import (
    METRICS,
    STUCK,
    VISIBLE,
    sample_calls,
    sample_names,
    sample_values,
)
from agent.collectors.nvml_process import (
    ABSENT,
    NOT_INSTALLED,
    SILENT_S,
    GpuReading,
    NodeReading,
    NvmlProcess,
)
from agent.collectors.orphans import is_orphan
from agent.collectors.subjects import name_pci
from agent.procfs import Proc
from watchtower.metric_spec import Sample
from watchtower.printable import printable
from watchtower.wire.observations import NODE, Observation

FRESH_S = 5.0
"""Values that are older are not shown: of a GPU whose calls do not return, or of a lost one."""

STUCK_S = 3.0
"""A call of NVML that has not returned for so long is reported. Slow calls take some ms; a cold
driver answers the first one after 3 s."""

REPORTED_S = 900.0
"""Seconds for which an increase of an error counter is reported."""

LOST = {"lost": "NVML cannot reach the GPU", "reset_required": "it needs a reset"}
"""States of a GPU that cannot work, and what they mean."""

MAX_XID = 99_999
"""A larger code is not one."""

MAX_COMMAND = 16
"""Characters of the name of a process: the kernel's own limit."""

MAX_PROCESSES = 4
"""Processes of one GPU that are reported: a rank and its helpers."""

ERRORS = {
    "ecc_uncorrected": "uncorrected errors of its memory",
    "nvlink_replay": "replays of NVLink",
    "nvlink_recovery": "recoveries of NVLink",
    "nvlink_crc_flit": "checksum errors of NVLink",
    "nvlink_crc_data": "checksum errors of NVLink data",
    "nvlink_malformed": "malformed packets of NVLink",
    "nvlink_integrity": "integrity errors of NVLink",
    "nvlink_link_recovery": "recoveries of links of NVLink",
    "pcie_replays": "replays of PCIe",
}
"""Counters whose increase is reported, and their meaning."""

LANES = (
    ("utilization", "%", 100.0, "utilization"),
    ("power", "W", 1.0, "power_w"),
    ("tensor", "%", 100.0, "tensor_active"),
    ("memory bandwidth", "%", 100.0, "dram_active"),
    ("clock", "MHz", 1e-6, "sm_clock_hz"),
)
"""Series of a GPU: name, unit, number of this unit in the unit of a reading, and its name there.
The smallest difference that matters is one unit."""

RECOVERY_ACTIONS = (
    "none",
    "reset_gpu",
    "reboot_node",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex",
    "reset_bus",
    "reboot_system",
)
"""The driver's recommendation, by its number in NVML."""


@dataclass(slots=True)
class _Gpu:
    """One GPU as it was last read."""

    reading: GpuReading
    read_at: float
    """When its values were read; minus infinity if they never were."""
    loads: deque[Load] = field(default_factory=lambda: deque(maxlen=16))
    increased: dict[str, tuple[float, float]] = field(default_factory=dict)
    """When an error counter last increased, and by how much since it was first read."""
    first: dict[str, float] = field(default_factory=dict)
    """The error counters when they were first read."""
    lost_at: float | None = None

    def take(self, reading: GpuReading, now: float) -> None:
        """Add a reading."""
        for name in ERRORS.keys() & reading.values.keys():
            count, before = reading.values[name], self.reading.values.get(name)
            base = self.first[name] = min(count, self.first.get(name, count))
            if before is not None and count > before:
                self.increased[name] = now, count - base
        is_new = reading.age_s >= 0 and now - reading.age_s > self.read_at
        self.reading = reading
        if is_new:
            self.read_at = now - reading.age_s
            if load := Load.of(reading.values, self.read_at):
                self.loads.append(load)
        self.lost_at = (self.lost_at or now) if reading.state in LOST else None

    @property
    def subject(self) -> str:
        """The GPU in observations: its PCI address; without it, its number."""
        pci = self.reading.names.get("pci", "")
        return name_pci(pci) if pci else f"gpu:{self.reading.index}"

    def find_pattern(self, now: float) -> Pattern:
        """Return what it does."""
        if self.lost_at is not None:
            return Pattern.LOST
        return find_pattern(self.loads, now)

    def is_fresh(self, now: float) -> bool:
        """Return whether its values are new."""
        return now - self.read_at <= FRESH_S


class Nvml:
    """Reads the GPUs of this node."""

    name = "nvml"
    metrics = METRICS

    def __init__(self, root: str = "/") -> None:
        self._process, self._proc = NvmlProcess(root), Proc(root)
        self._gpus: dict[int, _Gpu] = {}
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
            yield self._observe(call.subject, "nvml_stuck", call.age_s, text=words, pid=call.pid)
        yield from self._observe_xids(now)
        for gpu in self._gpus.values():
            yield from self._observe_gpu(gpu, now)

    def _observe_xids(self, now: float) -> Iterator[Observation]:
        """Return the Xid errors of the last minutes. The kernel log may have the same ones."""
        for pci, code, read_s in self._node.xids:
            age_s = read_s + now - self._read_at
            if age_s <= REPORTED_S and 0 <= code <= MAX_XID:
                text = f"NVML reports Xid {code}"
                yield self._observe(name_pci(pci), f"xid.{code}", age_s, text=text)

    def series(self) -> Iterator[Measured]:
        """Return the load of each GPU that was read in the last seconds."""
        for gpu in self._gpus.values():
            if gpu.is_fresh(self._collected_at):
                yield Measured(
                    subject=gpu.subject,
                    index=gpu.reading.index,
                    pids=tuple(gpu.reading.processes[:MAX_PROCESSES]),
                    readings=tuple(_read_lanes(gpu.reading.values)),
                )

    def samples(self, wall_now: float) -> Iterator[Sample]:
        """Return the values of all GPUs that were read in the last seconds."""
        now = self._collected_at
        if not self._gpus and not self.can_read:
            return
        yield Sample(VISIBLE, (), len(self._gpus))
        stuck = self._find_stuck(now)
        yield Sample(STUCK, (), stuck.age_s if stuck else 0.0)
        yield from sample_calls(self._node)
        for gpu in self._gpus.values():
            label, pattern = gpu.subject.removeprefix("pci:"), gpu.find_pattern(now)
            yield from sample_names(label, pattern, gpu.reading, self._node.driver)
            if gpu.is_fresh(now):
                yield from sample_values(label, gpu.reading)

    @property
    def can_read(self) -> bool:
        """Whether NVML answered in the last seconds."""
        is_recent = self._collected_at - self._read_at <= FRESH_S
        return is_recent and not self._node.state and not self._node.call

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
        return f"GPUs: NVML cannot be used ({state})" if state and state not in ABSENT else ""

    def stop(self) -> None:
        """Ask the child to end. One that is in a call of the driver is left behind."""
        self._process.stop()

    def _take(self, reading: GpuReading, now: float) -> _Gpu:
        gpu = self._gpus.get(reading.index) or _Gpu(reading, float("-inf"))
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

    def _observe_gpu(self, gpu: _Gpu, now: float) -> Iterator[Observation]:
        if gpu.lost_at is None and gpu.read_at == float("-inf"):
            return  # its first read has not ended
        reading, subject = gpu.reading, gpu.subject
        pattern = gpu.find_pattern(now)
        age_s = now - (gpu.read_at if gpu.lost_at is None else self._read_at)
        pids = reading.processes[:MAX_PROCESSES]
        if gpu.is_fresh(now) or gpu.lost_at is not None:
            yield self._observe(
                subject,
                f"gpu_pattern.{pattern.value}",
                age_s,
                value=reading.index,
                text=_describe_load(reading.values),
                pid=pids[0] if pids else None,
            )
        for pid in pids[1:]:
            yield self._observe(subject, f"gpu_process.{pid}", age_s, pid=pid)
        if gpu.lost_at is not None:
            words, lost_s = LOST[reading.state], now - gpu.lost_at
            yield self._observe(subject, f"gpu_{reading.state}", lost_s, text=words)
        yield from self._observe_trouble(gpu, age_s, now)

    def _observe_trouble(self, gpu: _Gpu, age_s: float, now: float) -> Iterator[Observation]:
        reading, subject = gpu.reading, gpu.subject
        orphans = [pid for pid in reading.processes if is_orphan(self._proc, pid)]
        if orphans:
            first = printable(self._proc.name(orphans[0]), MAX_COMMAND)
            more = f" and {len(orphans) - 1} more" if len(orphans) > 1 else ""
            text = f"pid {orphans[0]} ({first}){more} uses it, and its job has ended"
            yield self._observe(subject, "gpu_orphan", age_s, value=len(orphans), text=text)
        for name, (at, count) in gpu.increased.items():
            if now - at <= REPORTED_S:
                text = f"{count:.0f} {ERRORS[name]} since the agent started"
                yield self._observe(subject, f"gpu_errors.{name}", now - at, value=count, text=text)
        width, most = (reading.values.get(each, 0) for each in ("pcie_width", "pcie_max_width"))
        if 0 < width < most:
            text = f"its PCIe link has {width:.0f} of {most:.0f} lanes"
            yield self._observe(subject, "gpu_pcie_width", age_s, value=width, text=text)
        action = int(reading.values.get("recovery_action", 0))
        if 0 < action < len(RECOVERY_ACTIONS):
            text = f"the driver recommends: {RECOVERY_ACTIONS[action]}"
            yield self._observe(subject, "gpu_recovery", age_s, value=action, text=text)

    def _observe(
        self,
        subject: str,
        name: str,
        age_s: float,
        *,
        value: float | None = None,
        text: str = "",
        pid: int | None = None,
    ) -> Observation:
        return Observation(
            source=self.name,
            subject=subject,
            name=name,
            age_s=max(0.0, age_s),
            value=value,
            text=text,
            pid=pid,
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that has not returned."""

    call: str
    age_s: float
    where: str
    subject: str
    pid: int | None = None
    """A process that uses the GPU."""


def _read_lanes(values: Mapping[str, float]) -> Iterator[Reading]:
    for name, unit, factor, key in LANES:
        if key in values:
            yield Reading(name, unit, 1.0, factor * values[key])


def _describe_load(values: Mapping[str, float]) -> str:
    """Return "100 % busy, memory 0 %, 95 W of 700 W"; empty without values."""
    if values.get("mig"):
        return "MIG is on, so its load is not known"
    if "utilization" not in values:
        return ""
    said = f"{values['utilization']:.0%} busy, memory {values.get('memory_utilization', 0):.0%}"
    if "power_w" in values:
        limit = f" of {values['power_limit_w']:.0f} W" if "power_limit_w" in values else ""
        said += f", {values['power_w']:.0f} W{limit}"
    return said
