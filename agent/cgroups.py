"""The cgroups of a process: /proc/PID/cgroup, where the folders are, and their small files
(cgroups(7)).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from agent.procfs import Proc, read_text

CGROUP_MOUNT = "sys/fs/cgroup"
"""Where the hierarchies are mounted, below the root."""

MAX_BYTES = 65536
"""Bytes read of /proc/PID/cgroup. It has some 15 lines."""

MAX_FILE_BYTES = 4096
"""Bytes read of a file of a cgroup. `memory.stat` has the most: some 50 lines."""

MAX_RANKS = 64
"""Ranks whose cgroups are read. A node has up to 16."""

MAX_FOLDERS = 8
"""Folders read for one rank, its own first. Slurm and Kubernetes use up to 6."""


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
    yield from _parse(proc.try_read(pid, "cgroup", MAX_BYTES))


def _parse(raw: bytes) -> Iterator[Membership]:
    for line in raw.decode("utf-8", "surrogateescape").split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            yield Membership(frozenset(), path, ("", "unified"))
        elif path:
            names = controllers.removeprefix("name=")
            # "cpu,cpuacct" may be mounted under this name, the other way round, or one by one.
            mounts = tuple(dict.fromkeys((names, *names.split(","))))
            yield Membership(frozenset(controllers.split(",")), path, mounts)


def find_folders(proc: Proc, ranks: Iterable[int], controller: str) -> dict[int, tuple[str, ...]]:
    """Return the folders of ranks that may have limits of a controller, by pid.

    They are relative to `CGROUP_MOUNT`: the own folder first, then those above it, without the
    root, which has no limit.
    """
    texts = {pid: proc.try_read(pid, "cgroup", MAX_BYTES) for pid in islice(ranks, MAX_RANKS)}
    # The ranks of a job are usually in one cgroup.
    folders = {
        raw: tuple(islice(_list_folders(raw, controller), MAX_FOLDERS))
        for raw in set(texts.values())
    }
    return {pid: folders[raw] for pid, raw in texts.items()}


def _list_folders(raw: bytes, controller: str) -> Iterator[str]:
    for each in _parse(raw):
        if (each.is_v2 or controller in each.controllers) and not each.is_hidden:
            for mount in each.mounts:
                yield from _climb(mount, each.path)


def _climb(mount: str, path: str) -> Iterator[str]:
    while path.strip("/"):
        yield os.path.join(mount, path.strip("/"))
        path = os.path.dirname(path.rstrip("/"))


def read_file(folder: str, name: str) -> str:
    """Return a small file of a cgroup; an empty text if it cannot be read."""
    return read_text(os.path.join(folder, name), MAX_FILE_BYTES)


def parse_rows(text: str) -> dict[str, int]:
    """Return the numbers of a file with lines such as "nr_periods 10"; other lines are skipped."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1][:20]) for row in rows if len(row) == 2 and row[1].isdecimal()}
