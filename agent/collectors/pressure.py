"""Collector: how long the processes of the node wait for CPU, memory and block devices.

The kernel measures this as *pressure* (accounting/psi): the share of the last 10 s in which some or
all processes that could run were waiting. A node without free memory looks like a node with slow
ranks: only the pressure shows the difference.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from agent.collectors.collector import Collector
from agent.procfs import read_text
from watchtower.service.metric_spec import Sample, gauge
from watchtower.wire.observations import NODE, Observation

PRESSURE = gauge(
    "watchtower_pressure_ratio",
    "resource kind",
    "Share of the last 10 s in which processes of the node waited for cpu, memory or io, 0 to 1: "
    "`some` of those that could run, or `full`, all of them.",
)

KINDS = {"cpu": ("some",), "memory": ("some", "full"), "io": ("some", "full")}
"""Kinds that are read. All processes of a node never wait for CPUs at once: the kernel writes 0."""

REPORTED = {"memory": (0.1, "memory"), "io": (0.8, "block devices")}
"""Smallest share of `full` that is reported, and the words. A node that reads data often waits for
its disks, but each wait for memory slows down all ranks. Training uses all CPUs on purpose."""

EVERY_S = 5.0
"""Seconds between two reads. The kernel's shares are those of 10 s."""

MAX_BYTES = 512
"""Bytes read of a file. It has two lines."""


class Pressure(Collector):
    """Reads /proc/pressure."""

    name = "pressure"
    metrics = (PRESSURE,)

    def __init__(self, root: str = "/") -> None:
        self._folder = os.path.join(root, "proc/pressure")
        self._values: dict[tuple[str, str], float] = {}
        """By resource and kind."""
        self._read_at = float("-inf")

    def collect(self, now: float) -> Iterator[Observation]:
        """Return one observation for each resource that all processes wait for."""
        if now - self._read_at >= EVERY_S:
            self._read_at = now
            self._values = {
                (resource, kind): value
                for resource in KINDS
                for kind, value in self._read(resource)
            }
        for resource, (least, words) in REPORTED.items():
            value = self._values.get((resource, "full"), 0.0)
            if value >= least:
                yield Observation(
                    source=self.name,
                    subject=NODE,
                    name=f"pressure.{resource}",
                    age_s=now - self._read_at,
                    value=value,
                    text=f"all processes waited for {words} in {value:.0%} of the last 10 s",
                )

    def samples(self, wall_now: float) -> Iterator[Sample]:
        """Return all shares."""
        for labels, value in self._values.items():
            yield Sample(PRESSURE, labels, value)

    @property
    def can_read(self) -> bool:
        """Whether the last `collect` read a share."""
        return bool(self._values)

    def _read(self, resource: str) -> Iterator[tuple[str, float]]:
        """Yield kind and share of the lines "some avg10=1.25 avg60=0.50 avg300=0.10 total=812"."""
        # Not there, or "Operation not supported": many kernels are started without psi=1.
        for line in read_text(os.path.join(self._folder, resource), MAX_BYTES).splitlines():
            kind, _, rest = line.partition(" ")
            words = rest.split()
            percent = words[0].removeprefix("avg10=") if words else ""
            if kind in KINDS[resource] and percent.replace(".", "", 1).isdecimal():
                yield kind, min(1.0, float(percent[:16]) / 100)
