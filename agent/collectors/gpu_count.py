"""How many GPUs the node should have. One that the driver could not start is missing silently.

NVML lists only GPUs that work. The PCI bus lists all that are plugged in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice

from agent.collectors.gpu_report import observe
from watchtower.wire.observations import NODE, Observation

DEVICES = "sys/bus/pci/devices"

VENDOR = b"0x10de"
CLASSES = (b"0x0300", b"0x0302")
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
        if not _read(f"{device}/class").startswith(CLASSES):
            return False
        if not _read(f"{device}/vendor").startswith(VENDOR):
            return False
        try:
            driver = os.path.basename(os.readlink(f"{device}/driver"))
        except OSError:
            return True  # no driver has taken it, so NVIDIA's could not start it
        return driver == DRIVER


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES)
    except OSError:
        return b""
