"""The cgroups of a process: what /proc/PID/cgroup says, and where the folders are (cgroups(7))."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from agent.procfs import Proc

CGROUP_MOUNT = "sys/fs/cgroup"
"""Where the hierarchies are mounted, below the root."""

MAX_BYTES = 65536
"""Bytes read of /proc/PID/cgroup. It has some 15 lines."""


class Membership(NamedTuple):
    """The cgroup of a process in one hierarchy."""

    controllers: frozenset[str]
    """Such as "cpu" and "cpuacct". Empty for cgroup v2, where each folder may have any of them."""
    path: str
    """Such as "/system.slice/slurmstepd.scope/job_7". The job's own processes may choose names."""
    mounts: tuple[str, ...]
    """Where the hierarchy may be mounted, below `CGROUP_MOUNT`."""

    @property
    def is_v2(self) -> bool:
        """Whether this is the one hierarchy of cgroup v2."""
        return not self.controllers

    @property
    def is_hidden(self) -> bool:
        """Whether the path leads out of our own cgroup namespace, so that it cannot be followed."""
        return self.path.startswith("/..")

    @property
    def folders(self) -> tuple[str, ...]:
        """Its folder below each mount, relative to `CGROUP_MOUNT`."""
        inside = self.path.strip("/")
        return tuple(os.path.join(mount, inside) for mount in self.mounts)


def read_memberships(proc: Proc, pid: int) -> Iterator[Membership]:
    """Yield the cgroups of a process, one for each hierarchy; nothing if they cannot be read."""
    raw = proc.try_read(pid, "cgroup", MAX_BYTES).decode("utf-8", "surrogateescape")
    for line in raw.split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            yield Membership(frozenset(), path, ("", "unified"))
        elif path:
            names = controllers.removeprefix("name=")
            # "cpu,cpuacct" may be mounted under this name, the other way round, or one by one.
            mounts = tuple(dict.fromkeys((names, *names.split(","))))
            yield Membership(frozenset(controllers.split(",")), path, mounts)
