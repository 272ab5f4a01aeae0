"""Checks whether the cgroup of a process is frozen.

State and kernel function of the process do not show this reliably. On cgroup v1 a frozen process is
in state D; on v2 it sleeps, in any system call (new kernels leave it there). Its cgroup shows it
(admin-guide/cgroup-v1/freezer-subsystem, cgroup-v2).
"""

from __future__ import annotations

import os

from agent.procfs import Proc, parse_fields

CGROUP_MOUNT = "sys/fs/cgroup"
MAX_STATE_BYTES = 1024
"""Bytes read of a state file of the kernel, which has two lines."""


def is_frozen(proc: Proc, pid: int) -> bool:
    """Return whether a cgroup of the process is frozen. False also if that cannot be read."""
    mount = os.path.join(os.path.dirname(proc.path), CGROUP_MOUNT)
    for line in proc.try_read(pid, "cgroup", 65536).decode("utf-8", "surrogateescape").split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "freezer" in controllers.split(","):
            state = _read(f"{mount}/freezer{path}/freezer.state").strip()
            if state in (b"FROZEN", b"FREEZING"):
                return True
        elif number == "0" and path:
            events = parse_fields(_read(f"{mount}{path}/cgroup.events").replace(b" ", b":"))
            if events.get("frozen") == "1":
                return True
    return False


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_STATE_BYTES)
    except OSError:
        return b""
