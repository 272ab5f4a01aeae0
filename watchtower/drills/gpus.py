"""GPUs of a drill: a library with the functions of the driver, which an agent's reader loads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from watchtower.drills.compiling import QUEUED, compile_library

LIBRARY = "libnvidia-ml.so.1"

WORKS = "utilization {gpu} 99\nmemory_utilization {gpu} 31\npower {gpu} 588\n"
"""The load of a GPU in training steps, and in a kernel that does not end."""

SPINS = "utilization {gpu} 100\nmemory_utilization {gpu} 0\npower {gpu} 121\n"
"""The load of a GPU that waits for another one in a kernel of a collective."""

IDLES = "utilization {gpu} 0\nmemory_utilization {gpu} 0\npower {gpu} 78\n"
"""The load of a GPU without work."""

THROTTLED = "utilization {gpu} 97\nmemory_utilization {gpu} 14\npower {gpu} 232\nreasons {gpu} 64\n"
"""The load of a GPU whose clocks its hardware has reduced because of heat."""

LOST = "rc {gpu} 15\n"
"""Calls of the driver for this GPU fail: it has fallen off the bus."""

HANGS = "hang.all {gpu} 1\n"
"""Calls of the driver for this GPU do not return."""


NO_ERRORS = "field.4 {gpu} 0\nfield.94 {gpu} 0\nfield.230 {gpu} 0\n"
"""Counters of a GPU without uncorrected errors and replays, for which the driver asks nothing."""

FIRST_BUS = 0x3A
"""The first GPU is on this PCI bus, the others on the next ones (nvml.c)."""


def name_address(number: int) -> str:
    """Return the PCI address of a GPU, as the kernel log writes it."""
    return f"0000:{FIRST_BUS + number:02x}:00"


class Gpus:
    """The GPUs of each node."""

    def __init__(self, folder: Path, count: int = 8) -> None:
        """`count`: GPUs of a node."""
        self._folder, self._count = folder, count

    def environment(self, node: str) -> Mapping[str, str]:
        """Return the environment of a process that is to load the driver of a node."""
        return {"LD_LIBRARY_PATH": str(self._folder / f"driver-{node}")}

    def make(self, node: str, root: Path) -> Mapping[str, str]:
        """Make the driver of a node, and return the environment of its agent."""
        folder = self._folder / f"driver-{node}"
        folder.mkdir()
        script = folder / "script"
        compile_library(QUEUED / "nvml.c", folder / LIBRARY, f'-DSCRIPT="{script}"')
        (root / "dev/nvidiactl").touch()
        self.show(node, [])
        return self.environment(node)

    def show(self, node: str, gpus: Sequence[tuple[int, str]]) -> None:
        """Set the first GPUs of a node: the process of each one (0: none), and its load.

        Others are idle.
        """
        errors = (NO_ERRORS.format(gpu=number) for number in range(self._count))
        lines = [f"count 0 {self._count}\n", *errors]
        for number, (pid, load) in enumerate(gpus):
            lines.append(f"pid {number} {pid}\n" if pid else "")
            lines.append(load.format(gpu=number))
        path = self._folder / f"driver-{node}" / "script"
        new = path.with_suffix(".new")
        new.write_text("".join(lines), encoding="utf-8")
        os.replace(new, path)
