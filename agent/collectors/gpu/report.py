"""The report of one GPU: its pattern, its processes, its state, and errors that increased."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.collectors.gpu.pattern import Load, Pattern, Stillness, find_pattern
from agent.collectors.gpu.reading import GpuReading
from agent.procfs import Proc
from watchtower.wire.observations import MIG_IS_ON, NODE, Observation, name_pci
from watchtower.writing.printable import printable

INIT = 1

_PPID, _SESSION = 1, 3
"""Positions after the command name: the field number in proc(5) minus 3."""


def is_orphan(proc: Proc, pid: int) -> bool:
    """Return whether the parent of a process and the leader of its session have ended.

    A service of systemd has init as its parent, too, but leads its session.
    """
    fields = proc.try_read(pid, "stat", 4096).rpartition(b")")[2].split()
    if len(fields) <= _SESSION or fields[_PPID] != str(INIT).encode():
        return False
    session = int(fields[_SESSION])
    return session not in (0, pid) and proc.stat(session) is None


FRESH_S = 5.0
"""Values that are older are not shown: of a GPU whose calls do not return, or of a lost one."""

ORPHANS_EVERY_S = 10.0
"""Seconds between two checks of the processes of a GPU for orphans."""

LOST = {"lost": "NVML cannot reach the GPU", "reset_required": "it needs a reset"}
"""States of a GPU that cannot work, and what they mean."""

ERRORS = {
    "ecc_corrected": "corrected errors of its memory",
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


BURST_S = 60.0
"""Seconds without an increase after which the next one begins a new burst. Counters are read every
10 s, and a fault of a device may stop for a while."""


class Increase(NamedTuple):
    """The latest increase of a counter."""

    at: float
    total: float
    """Of the latest burst: increases that follow each other. So an old total is not called new."""
    per_s: float
    """Of this increase, since the increase before it. So a counter that rests for an hour and then
    jumps has no high rate: two reads in turn must show it."""


@dataclass(slots=True)
class _Counter:
    """One counter of errors."""

    last: float
    changed_at: float
    latest: Increase | None = None

    def take(self, count: float, now: float) -> None:
        """Add a reading. A lower one means that the driver was loaded again."""
        if count > self.last:
            per_s = (count - self.last) / max(1.0, now - self.changed_at)
            before = self.latest
            earlier = before.total if before and now - before.at <= BURST_S else 0.0
            self.latest = Increase(now, earlier + count - self.last, per_s)
        if count != self.last:
            self.changed_at = now
        self.last = count


class Trouble(NamedTuple):
    """A state of a device that it should not have."""

    name: str
    """Of its observation."""
    text: str
    value: float | None = None


@dataclass(slots=True)
class GpuState:
    """One GPU."""

    reading: GpuReading
    read_at: float = float("-inf")
    """When its values were read; minus infinity if they never were."""
    lost_at: float | None = None
    _used_at: dict[int, float] = field(default_factory=dict)
    """By process: when the GPU last had it. Those that have ended are forgotten after a while."""
    links_lost: tuple[float, int] | None = None
    """When NVLinks were lost that were up before, and how many are; None if none is."""
    _orphans: tuple[float, tuple[int, ...]] = (float("-inf"), ())
    """When its processes were last checked, and those whose job has ended."""
    _links_up: float = 0.0
    """The most NVLinks that were up."""
    _stillness: Stillness = field(default_factory=Stillness)
    _loads: deque[Load] = field(default_factory=lambda: deque(maxlen=16))
    _counters: dict[str, _Counter] = field(default_factory=dict)
    _troubles: dict[str, tuple[Trouble | None, float]] = field(default_factory=dict)
    """By family: the last state that is known, and since when it is so."""

    def take(self, reading: GpuReading, now: float) -> None:
        """Add a reading."""
        for name in ERRORS.keys() & reading.values.keys():
            count = reading.values[name]
            self._counters.setdefault(name, _Counter(count, now)).take(count, now)
        is_new = reading.age_s >= 0 and now - reading.age_s > self.read_at
        self.reading = reading
        if is_new:
            self.read_at = now - reading.age_s
            self._stillness.take(reading.values, self.read_at)
            self._take_states(reading.values)
            self._count_links(reading.values.get("nvlinks_up"), now)
            if load := Load.of(reading.values, self.read_at):
                self._loads.append(load)
        self.lost_at = (self.lost_at or now) if reading.state in LOST else None
        self._note_processes(reading.processes, now)

    def _note_processes(self, processes: Iterable[int], now: float) -> None:
        for pid in processes:
            self._used_at.pop(pid, None)
            self._used_at[pid] = now
        latest = list(self._used_at.items())[-MAX_ENDED:]
        self._used_at = {pid: at for pid, at in latest if now - at <= ENDED_FOR_S}

    def ended(self, now: float) -> Iterator[tuple[int, float]]:
        """Yield the processes that it had and has no more, with the seconds since then."""
        for pid, at in self._used_at.items():
            if pid not in self.reading.processes:
                yield pid, now - at

    def _take_states(self, values: Mapping[str, float]) -> None:
        """Note which states have changed.

        One that was there at the first read has begun at any time since boot, where the clock
        begins. While a value cannot be read, the last one is kept.
        """
        for family, trouble in find_states(values).items():
            before = self._troubles.get(family)
            if before is None or before[0] != trouble:
                self._troubles[family] = trouble, 0.0 if before is None else self.read_at

    def find_troubles(self) -> Iterator[tuple[Trouble, float]]:
        """Yield the states that the device should not have, each with the time since when."""
        for family in find_states(self.reading.values):
            trouble, since = self._troubles.get(family, (None, 0.0))
            if trouble is not None:
                yield trouble, since

    @property
    def subject(self) -> str:
        """The GPU in observations: its PCI address; without it, its number."""
        pci = self.reading.names.get("pci", "")
        return name_pci(pci) if pci else f"gpu:{self.reading.index}"

    @property
    def was_read(self) -> bool:
        """Whether its first read has ended, or has shown that it is lost."""
        return self.lost_at is not None or self.read_at > float("-inf")

    def find_pattern(self, now: float) -> Pattern:
        """Return what it does."""
        if self.lost_at is not None:
            return Pattern.LOST
        if self.frozen_at is not None:
            return Pattern.FROZEN
        return find_pattern(self._loads, now)

    @property
    def frozen_at(self) -> float | None:
        """Since when its counters stand still; None if they do not, or if that is not certain."""
        return self._stillness.since(self.read_at)

    def find_orphans(self, proc: Proc, now: float) -> list[int]:
        """Return the processes of the GPU whose job has ended, as of the last seconds."""
        checked_at, orphans = self._orphans
        if now - checked_at >= ORPHANS_EVERY_S:
            orphans = tuple(pid for pid in self.reading.processes if is_orphan(proc, pid))
            self._orphans = now, orphans
        return [pid for pid in orphans if pid in self.reading.processes]

    def _count_links(self, up: float | None, now: float) -> None:
        if up is None:
            return
        self._links_up = max(self._links_up, up)
        lost = int(self._links_up - up)
        if lost == 0:
            self.links_lost = None
        elif self.links_lost is None or self.links_lost[1] != lost:
            self.links_lost = now, lost

    def is_fresh(self, now: float) -> bool:
        """Return whether its values are new."""
        return now - self.read_at <= FRESH_S

    def increases(self) -> dict[str, Increase]:
        """Return the latest increase of each counter of errors that has increased."""
        latest = ((name, counter.latest) for name, counter in self._counters.items())
        return {name: each for name, each in latest if each is not None}


SOURCE = "nvml"

REPORTED_S = 900.0
"""Seconds for which an increase of an error counter is reported."""

RISING_S = 30.0
"""Seconds after an increase of the errors of its memory in which they count as rising. They are
read every 10 s."""

ENDED_FOR_S = 60.0
"""Seconds for which a process that has ended is reported with its GPU: its rank may have died of a
fault of that GPU."""

MAX_ENDED = 8
"""Processes of one GPU that have ended and are remembered, the latest ones."""

MAX_COMMAND = 16
"""Characters of the name of a process: the kernel's own limit."""

MAX_REPORTED_PROCESSES = 16
"""Processes of one GPU that are reported: a rank and its helpers, or by mistake all ranks of a
node."""

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

FROZEN = "NVML answers, and none of its counters changes, not even its energy"

FABRIC_STATES = {1: "is not set up yet: is the fabric manager running?", 2: "is being set up"}
"""States of the set-up in which programs cannot use NVLink."""

FABRIC_DONE = 3
"""State of a set-up that has ended, with or without an error."""

FABRIC_HEALTH = {2: "is unhealthy", 3: "has less capacity than it should"}
"""Bad values of its health, in words. Since NVML's version 3 of the structure."""


def observe(
    subject: str,
    name: str,
    age_s: float,
    *,
    value: float | None = None,
    unit: str = "",
    text: str = "",
    pid: int | None = None,
) -> Observation:
    """Return an observation of NVML."""
    return Observation(
        source=SOURCE,
        subject=subject,
        name=name,
        age_s=max(0.0, age_s),
        value=value,
        unit=unit,
        text=text,
        pid=pid,
    )


def observe_gpu(gpu: GpuState, read_at: float, now: float, proc: Proc) -> Iterator[Observation]:
    """Return what is known of a GPU; nothing before its first read.

    `read_at`: when the reader last printed the state of the GPU.
    """
    if not gpu.was_read:
        return
    reading, subject = gpu.reading, gpu.subject
    age_s = now - (gpu.read_at if gpu.lost_at is None else read_at)
    pids = reading.processes[:MAX_REPORTED_PROCESSES]
    if gpu.is_fresh(now) or gpu.lost_at is not None:
        yield observe(
            subject,
            f"gpu_pattern.{gpu.find_pattern(now).value}",
            age_s,
            value=reading.index,
            text=_describe_load(reading.values),
            pid=pids[0] if pids else None,
        )
    for pid in pids[1:]:
        yield observe(subject, f"gpu_process.{pid}", age_s, pid=pid)
    for pid, ended_s in gpu.ended(now):
        yield observe(subject, f"gpu_process.{pid}", ended_s, pid=pid)
    if gpu.lost_at is not None:
        words, lost_s = LOST[reading.state], now - gpu.lost_at
        yield observe(subject, f"gpu_{reading.state}", lost_s, text=words)
    if gpu.frozen_at is not None:
        frozen_s, first = now - gpu.frozen_at, next(iter(pids), None)
        yield observe(subject, "gpu_frozen", frozen_s, text=FROZEN, pid=first)
    yield from _observe_orphans(gpu, age_s, now, proc)
    yield from _observe_errors(gpu, now)
    for trouble, since in gpu.find_troubles():
        yield observe(subject, trouble.name, now - since, value=trouble.value, text=trouble.text)
    yield from _observe_links(gpu, now)


def observe_fabric(gpus: Collection[GpuState], now: float) -> Iterator[Observation]:
    """Return that the NVLink fabric of the node is not set up: a program that waits for it may not
    use a GPU yet, so that the observations of GPUs name no process."""
    begun = [
        since
        for gpu in gpus
        for trouble, since in gpu.find_troubles()
        if trouble.name == "gpu_fabric" and trouble.value in FABRIC_STATES
    ]
    if begun:
        text = f"the NVLink fabric of {len(begun)} of its {len(gpus)} GPUs is not set up"
        yield observe(NODE, "fabric_not_ready", now - min(begun), value=len(begun), text=text)


def _observe_orphans(gpu: GpuState, age_s: float, now: float, proc: Proc) -> Iterator[Observation]:
    if orphans := gpu.find_orphans(proc, now):
        first = printable(proc.name(orphans[0]), MAX_COMMAND)
        more = f" and {len(orphans) - 1} more" if len(orphans) > 1 else ""
        text = f"pid {orphans[0]} ({first}){more} uses it, and its job has ended"
        yield observe(gpu.subject, "gpu_orphan", age_s, value=len(orphans), text=text)


def _observe_errors(gpu: GpuState, now: float) -> Iterator[Observation]:
    pid = next(iter(gpu.reading.processes), None)
    for name, (at, total, per_s) in gpu.increases().items():
        age_s = now - at
        if age_s <= REPORTED_S:
            text = f"{total:.0f} new {ERRORS[name]}"
            yield observe(gpu.subject, f"gpu_errors.{name}", age_s, value=total, text=text, pid=pid)
        if name.startswith("ecc_") and age_s <= RISING_S:
            kind, text = name.removeprefix("ecc_"), f"{per_s:.1f} {ERRORS[name]} a second"
            yield observe(
                gpu.subject, f"gpu_ecc.{kind}", age_s, value=per_s, unit="1/s", text=text, pid=pid
            )


def find_states(values: Mapping[str, float]) -> dict[str, Trouble | None]:
    """Return the states that are known, by family; None for one that is as it should be."""
    found: dict[str, Trouble | None] = {}
    if "pcie_width" in values and "pcie_max_width" in values:
        width, most = values["pcie_width"], values["pcie_max_width"]
        text = f"its PCIe link has {width:.0f} of {most:.0f} lanes"
        is_narrow = 0 < width < most
        found["gpu_pcie_width"] = Trouble("gpu_pcie_width", text, width) if is_narrow else None
    if "recovery_action" in values:
        action = int(values["recovery_action"])
        is_asked = 0 < action < len(RECOVERY_ACTIONS)
        text = f"the driver recommends: {RECOVERY_ACTIONS[action]}" if is_asked else ""
        found["gpu_recovery"] = Trouble("gpu_recovery", text, action) if is_asked else None
    if "remap_failed" in values or "remap_pending" in values or "retirement_pending" in values:
        found["gpu_remap"] = _find_damage(values)
    if "fabric_state" in values:
        trouble = _find_fabric_trouble(values)
        text, state = f"its NVLink fabric {trouble}", values["fabric_state"]
        found["gpu_fabric"] = Trouble("gpu_fabric", text, state) if trouble else None
    return found


def _find_damage(values: Mapping[str, float]) -> Trouble | None:
    """Return what is known about damaged memory."""
    if values.get("remap_failed"):
        text = "it could not replace a row of its memory: it must be exchanged"
        return Trouble("gpu_remap.failed", text)
    if values.get("remap_pending") or values.get("retirement_pending"):
        return Trouble("gpu_remap.pending", "it replaces memory with errors at its next reset")
    return None


def _observe_links(gpu: GpuState, now: float) -> Iterator[Observation]:
    values, pid = gpu.reading.values, next(iter(gpu.reading.processes), None)
    if gpu.links_lost is not None:
        at, count = gpu.links_lost
        text = f"{count} of its {values.get('nvlinks', 0):.0f} NVLinks were lost"
        yield observe(gpu.subject, "gpu_nvlink_lost", now - at, value=count, text=text, pid=pid)


def _find_fabric_trouble(values: Mapping[str, float]) -> str:
    """Return why the GPU cannot use its fabric; empty if it can, or if it has none."""
    state, status = values.get("fabric_state", 0), values.get("fabric_status", 0)
    if state in FABRIC_STATES:
        return FABRIC_STATES[int(state)]
    if state == FABRIC_DONE and status:
        return f"was not set up (error {status:.0f})"
    return FABRIC_HEALTH.get(int(values.get("fabric_health", 0)), "")


def _describe_load(values: Mapping[str, float]) -> str:
    """Return "100 % busy, memory 0 %, 95 W of 700 W"; empty without values."""
    if values.get("mig"):
        return f"{MIG_IS_ON}, so its load is not known"
    if "utilization" not in values:
        return ""
    text = f"{values['utilization']:.0%} busy, memory {values.get('memory_utilization', 0):.0%}"
    if "power_w" in values:
        limit = f" of {values['power_limit_w']:.0f} W" if "power_limit_w" in values else ""
        text += f", {values['power_w']:.0f} W{limit}"
    return text
