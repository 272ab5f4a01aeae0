"""Kernel logs for the drill only, because a process cannot write lines of the kernel.

Each agent reads below a root of its own, with the real /proc and a file in place of /dev/kmsg.
"""

from __future__ import annotations

import time
from pathlib import Path

from watchtower.drills.errors import DrillError

KERNEL_ERROR = 3
"""Priority of a record: facility 0 (kernel), level 3 (error)."""


class KernelLogs:
    """One kernel log for each node."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sequence = 0

    def make_root(self, node: str) -> Path:
        """Make the root of a node's agent, and return it."""
        root = self._folder / f"root-{node}"
        (root / "dev").mkdir(parents=True)
        (root / "proc").symlink_to("/proc")
        (root / "dev/kmsg").touch()
        return root

    def write_lost_gpu(self, node: str, address: str) -> None:
        """Add the line of a GPU that has fallen off the bus. The driver names no process in it."""
        text = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
        self.write(node, f"NVRM: Xid (PCI:{address}): 79, {text}")

    def write(self, node: str, text: str) -> None:
        """Add a line of the kernel to the log of a node."""
        if any(ord(character) < ord(" ") for character in text):
            raise DrillError(f"not one line: {text!r}")
        self._sequence += 1
        at_us = time.monotonic_ns() // 1000
        with (self._folder / f"root-{node}/dev/kmsg").open("a", encoding="utf-8") as file:
            file.write(f"{KERNEL_ERROR},{self._sequence},{at_us},-;{text}\n")
