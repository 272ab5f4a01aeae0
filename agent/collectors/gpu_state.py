"""The state of one GPU: what was read last, and what has changed since the agent started."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.collectors.gpu_pattern import Load, Pattern, Stillness, find_pattern
from agent.collectors.nvml_process import GpuReading
from agent.collectors.orphans import is_orphan
from agent.collectors.subjects import name_pci
from agent.procfs import Proc

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


class Increase(NamedTuple):
    """The latest increase of a counter."""

    at: float
    total: float
    """Since the counter was first read."""
    per_s: float
    """Of this increase, since the increase before it. So a counter that rests for an hour and then
    jumps has no high rate: two reads in turn must show it."""


@dataclass(slots=True)
class _Counter:
    """One counter of errors."""

    first: float
    last: float
    changed_at: float
    latest: Increase | None = None

    def take(self, count: float, now: float) -> None:
        """Add a reading. A lower one means that the driver was loaded again."""
        if count > self.last:
            per_s = (count - self.last) / max(1.0, now - self.changed_at)
            self.latest = Increase(now, count - self.first, per_s)
        if count != self.last:
            self.changed_at = now
        self.first, self.last = min(self.first, count), count


@dataclass(slots=True)
class GpuState:
    """One GPU."""

    reading: GpuReading
    read_at: float = float("-inf")
    """When its values were read; minus infinity if they never were."""
    lost_at: float | None = None
    links_lost: tuple[float, int] | None = None
    """When NVLinks were lost that were up before, and how many are; None if none is."""
    _orphans: tuple[float, tuple[int, ...]] = (float("-inf"), ())
    """When its processes were last checked, and those whose job has ended."""
    _links_up: float = 0.0
    """The most NVLinks that were up."""
    _stillness: Stillness = field(default_factory=Stillness)
    _loads: deque[Load] = field(default_factory=lambda: deque(maxlen=16))
    _counters: dict[str, _Counter] = field(default_factory=dict)

    def take(self, reading: GpuReading, now: float) -> None:
        """Add a reading."""
        for name in ERRORS.keys() & reading.values.keys():
            count = reading.values[name]
            self._counters.setdefault(name, _Counter(count, count, now)).take(count, now)
        is_new = reading.age_s >= 0 and now - reading.age_s > self.read_at
        self.reading = reading
        if is_new:
            self.read_at = now - reading.age_s
            self._stillness.take(reading.values, self.read_at)
            self._count_links(reading.values.get("nvlinks_up"), now)
            if load := Load.of(reading.values, self.read_at):
                self._loads.append(load)
        self.lost_at = (self.lost_at or now) if reading.state in LOST else None

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
