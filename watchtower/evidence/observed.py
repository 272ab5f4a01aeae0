"""Which observations of a node are about one process, and about the GPUs of a job.

Other jobs may use the rest of the node, and the other GPUs of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from watchtower.wire.observations import NODE, Observation

SHARED_SUBJECTS = (NODE, "nic:")
"""Begin of the subject of an observation about what all processes of a node share."""

GPU_SUBJECTS = ("pci:", "gpu:")
"""Begin of the subject of an observation about a device."""

OF_GPUS = ("gpu_", "xid", "nvml_")
"""Beginnings of the names of observations that are only about GPUs. A PCI address alone may be that
of another device."""


class JobGpus:
    """The GPUs of one node, by the processes that the observations about them name."""

    def __init__(self, observations: Iterable[Observation], pids: Collection[int | None]) -> None:
        """`pids`: those of the job's ranks on this node, as far as they are known."""
        observations = tuple(observations)
        users: dict[str, set[int]] = {}
        for each in observations:
            if each.pid is not None and each.subject.startswith(GPU_SUBJECTS):
                users.setdefault(each.subject, set()).add(each.pid)
        self._users = users
        self._known = {each.subject for each in observations if each.name.startswith(OF_GPUS)}
        self._pids = {pid for pid in pids if pid is not None}
        seen = {pid for named in users.values() for pid in named}
        self._is_complete = None not in pids and bool(self._pids) and self._pids <= seen

    def uses(self, subject: str) -> bool | None:
        """Return whether a rank of the job uses a device; None if that is not known.

        If a GPU of each rank is known, a GPU without a process is not used by the job.
        """
        users = self._users.get(subject, set())
        if users & self._pids:
            return True
        is_idle = self._is_complete and subject in self._known
        return False if users or is_idle else None


class Observed:
    """The observations of one node, by process.

    A device belongs to the processes that any observation with its subject names.
    """

    def __init__(self, items: Iterable[Observation]) -> None:
        self._items = tuple(items)
        self._devices: dict[int, set[str]] = {}
        self._about: dict[int, tuple[Observation, ...]] = {}
        for item in self._items:
            if item.pid is not None:
                self._devices.setdefault(item.pid, set()).add(item.subject)

    def about(self, pid: int | None, families: Sequence[str] = ()) -> tuple[Observation, ...]:
        """Return the observations of these families, or all, about a process and its devices."""
        if pid is None:
            return ()
        found = self._about.get(pid)
        if found is None:
            # Kept: a diagnosis asks for the families one after the other.
            devices = self._devices.get(pid, frozenset[str]())
            found = tuple(i for i in self._items if i.pid == pid or i.subject in devices)
            self._about[pid] = found
        return tuple(item for item in found if item.family in families) if families else found

    def around(self, pid: int | None) -> tuple[Observation, ...]:
        """Return the observations about a process, its devices, and what all processes share."""
        shared = (item for item in self._items if item.subject.startswith(SHARED_SUBJECTS))
        return tuple(dict.fromkeys((*self.about(pid), *shared)))
