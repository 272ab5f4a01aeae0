"""Collector: whether the fabric manager runs on a node with NVSwitches, with the driver's version.

Without it, no program can use NVLink there, and each waits in its first call or fails. Only files
are read: no command, no D-Bus. A node without NVSwitches needs no fabric manager, though its
package may be installed. On systems whose switches are outside of the node, only NVML shows the
state.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from agent.collectors.collector import Collector
from agent.procfs import Proc, read_text
from watchtower.service.metric_spec import Sample, gauge
from watchtower.wire.observations import NODE, Observation
from watchtower.writing.printable import printable

RUNS = gauge(
    "watchtower_fabric_manager_up",
    "",
    "1 if NVIDIA's fabric manager runs on this node, which has NVSwitches.",
)

EVERY_S = 30.0
"""Seconds between two checks. Each reads the names of all processes, unless systemd's control group
shows that the service runs."""

SWITCHES = "proc/driver/nvidia-nvswitch/devices"
"""Has one entry for each NVSwitch of the node."""

UNIT = "system.slice/nvidia-fabricmanager.service/cgroup.procs"
GROUPS = ("sys/fs/cgroup", "sys/fs/cgroup/systemd", "sys/fs/cgroup/unified")
"""Where the control groups of services are, by version and mode of systemd."""

PROCESS = "nv-fabricmanage"
"""The name of its process, which the kernel cuts to 15 characters. It may run in a container."""

LOG = "var/log/fabricmanager.log"
MAX_LOG_BYTES = 64 * 1024
"""Bytes read of the end of its log: some hundred lines."""

DRIVER = "proc/driver/nvidia/version"
MAX_BYTES = 4096
"""Bytes read of a small file."""

MAX_VERSION = 32
"""Characters of a version that are shown."""

_VERSION = r"(\d[\d.]{0,30}\d)"
_MISMATCH = re.compile(f"interface version {_VERSION} don't match with driver version {_VERSION}")
_DRIVER = re.compile(rf"Kernel Module[^\n]{{0,64}}? {_VERSION} ")


class FabricManager(Collector):
    """Checks the fabric manager of one root."""

    name = "fabric_manager"
    metrics = (RUNS,)

    def __init__(self, root: str = "/") -> None:
        self._root, self._proc = root, Proc(root)
        self._checked_at = float("-inf")
        self._is_needed = self._runs = False
        self._trouble: tuple[str, float] | None = None
        """What is wrong, and since when."""

    def collect(self, now: float) -> Iterator[Observation]:
        """Return what is wrong with it, with the time since when."""
        if now - self._checked_at >= EVERY_S:
            is_first, self._checked_at = self._checked_at < 0.0, now
            self._is_needed = bool(_list(os.path.join(self._root, SWITCHES)))
            self._runs = self._is_needed and self._find_process()
            trouble = self._find_trouble() if self._is_needed else ""
            if not trouble:
                self._trouble = None
            elif self._trouble is None or self._trouble[0] != trouble:
                # What is found at the start of the agent may be as old as the node.
                self._trouble = trouble, 0.0 if is_first else now
        if self._trouble is not None:
            text, since = self._trouble
            yield Observation(
                source=self.name, subject=NODE, name=self.name, age_s=now - since, text=text
            )

    def samples(self, wall_now: float) -> Iterator[Sample]:
        """Return whether it runs, of a node that needs it."""
        if self._is_needed:
            yield Sample(RUNS, (), float(self._runs))

    @property
    def can_read(self) -> bool:
        """Whether the node needs it."""
        return self._is_needed

    def _find_trouble(self) -> str:
        """Return what is wrong; empty if it runs with the version of the driver."""
        if self._runs:
            return ""
        text = _read_end(os.path.join(self._root, LOG), MAX_LOG_BYTES)
        driver = _DRIVER.search(read_text(os.path.join(self._root, DRIVER), MAX_BYTES))
        for own, wanted in reversed(_MISMATCH.findall(text)):
            if driver is not None and driver[1] == wanted:
                versions = printable(f"{own}, and the driver {wanted}", 2 * MAX_VERSION)
                return f"the fabric manager does not run: it has version {versions}"
        return "the fabric manager (nvidia-fabricmanager.service) does not run"

    def _find_process(self) -> bool:
        if any(self._has_process(each) for each in GROUPS):
            return True
        return any(self._proc.name(pid) == PROCESS for pid in self._proc.pids())

    def _has_process(self, group: str) -> bool:
        return bool(read_text(os.path.join(self._root, group, UNIT), MAX_BYTES).strip())


def _read_end(path: str, limit: int) -> str:
    """Return the end of a file; empty if it cannot be read. A log belongs to root."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit))
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def _list(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
