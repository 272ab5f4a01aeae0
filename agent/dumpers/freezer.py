"""Checks whether the cgroup of a process is frozen.

State and kernel function of the process do not show this reliably. On cgroup v1 a frozen process is
in state D; on v2 it sleeps, in any system call (new kernels leave it there). Its cgroup shows it
(admin-guide/cgroup-v1/freezer-subsystem, cgroup-v2).
"""

from __future__ import annotations

import os

from agent.cgroups import CGROUP_MOUNT, read_memberships
from agent.procfs import Proc, parse_fields

MAX_STATE_BYTES = 1024
"""Bytes read of a state file of the kernel, which has two lines."""


def is_frozen(proc: Proc, pid: int) -> bool:
    """Return whether a cgroup of the process is frozen. False also if that cannot be read."""
    mount = os.path.join(os.path.dirname(proc.path), CGROUP_MOUNT)
    return any(
        _is_frozen(os.path.join(mount, folder), is_v2=each.is_v2)
        for each in read_memberships(proc, pid)
        if each.is_v2 or "freezer" in each.controllers
        for folder in each.folders
    )


def _is_frozen(folder: str, *, is_v2: bool) -> bool:
    if is_v2:
        events = parse_fields(_read(f"{folder}/cgroup.events").replace(b" ", b":"))
        return events.get("frozen") == "1"
    return _read(f"{folder}/freezer.state").strip() in (b"FROZEN", b"FREEZING")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_STATE_BYTES)
    except OSError:
        return b""
