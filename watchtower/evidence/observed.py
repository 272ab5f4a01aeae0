"""Which observations of a node are about one process, about the GPUs of a job, and about links.

Other jobs may use the rest of the node, and the other GPUs of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from watchtower.wire.observations import NODE, Observation

SHARED_SUBJECTS = (NODE, "nic:")
"""Begin of the subject of an observation about what all processes of a node share."""

GPU_SUBJECTS = ("pci:", "gpu:")
"""Begin of the subject of an observation about a device."""


class JobGpus:
    """The GPUs of one node, by the processes that the observations about them name."""

    def __init__(self, observations: Iterable[Observation], pids: Collection[int | None]) -> None:
        """`pids`: those of the job's ranks on this node, as far as they are known."""
        users: dict[str, set[int]] = {}
        for each in observations:
            if each.pid is not None and each.subject.startswith(GPU_SUBJECTS):
                users.setdefault(each.subject, set()).add(each.pid)
        self._users = users
        self._pids = {pid for pid in pids if pid is not None}
        seen = {pid for named in users.values() for pid in named}
        self._is_complete = None not in pids and bool(self._pids) and self._pids <= seen

    def is_of_others(self, subject: str) -> bool:
        """Return whether a device is only used by processes outside the job."""
        users = self._users.get(subject, set())
        return bool(users) and not users & self._pids

    def uses(self, subject: str) -> bool | None:
        """Return whether a rank of the job uses a device; None if that is not known.

        If a GPU of each rank is known, a device without a process is not used by the job.
        """
        users = self._users.get(subject, set())
        if users & self._pids:
            return True
        return False if users or self._is_complete else None


STATES = ("nic_link_lost", "nic_link_down", "nic_fault")
"""Families about a link of a network card that was lost, or about a card that failed."""

NVLINK_LOST = "gpu_nvlink_lost"
"""Family of the observation that NVLinks of a GPU were lost that were up before."""

SWITCH, SWITCH_FATAL = "sxid", ", Fatal, "
"""Family of errors of an NVSwitch, and the word of the driver for those that stop links."""

COUNTERS = ("nic_errors", "gpu_errors.nvlink_replay", "gpu_errors.nvlink_recovery")
"""Names of observations about counters that increased. Errors that were corrected are ordinary."""


@dataclass(frozen=True, slots=True)
class LinkFault:
    """One link that failed."""

    node: str
    observation: Observation
    by_state: bool
    """Its state shows it, and not only a counter of errors."""
    is_nvlink: bool
    is_used: bool
    """The job is known to use it."""

    @property
    def link(self) -> str:
        """The link or device: "eth1", "0000:5e:00"."""
        return self.observation.subject.partition(":")[2] or self.observation.subject


def find_link_faults(
    nodes: Iterable[tuple[str, JobGpus, Iterable[Observation]]], oldest_s: float
) -> tuple[LinkFault, ...]:
    """Return the links that failed in the last `oldest_s` seconds.

    NVLinks of GPUs that the job does not use are left out. States come first, then links that the
    job is known to use, then the earliest fault. Each node comes with the GPUs of the job and with
    its observations.
    """
    faults = [
        fault
        for node, gpus, observations in nodes
        for each in observations
        if each.age_s <= oldest_s
        for fault in _read(node, gpus, each)
    ]
    return tuple(sorted(faults, key=_rank_fault))


def _rank_fault(fault: LinkFault) -> tuple[bool, bool, float]:
    return not fault.by_state, not fault.is_used, -fault.observation.age_s


def _read(node: str, gpus: JobGpus, observation: Observation) -> Iterator[LinkFault]:
    family = observation.family
    if family in STATES:
        yield LinkFault(node, observation, by_state=True, is_nvlink=False, is_used=False)
    elif family == SWITCH and SWITCH_FATAL in observation.text:
        # All GPUs of a node share its switches.
        yield LinkFault(node, observation, by_state=True, is_nvlink=True, is_used=True)
    elif family == NVLINK_LOST or observation.name in COUNTERS:
        by_state, is_nvlink = family == NVLINK_LOST, family in (NVLINK_LOST, "gpu_errors")
        is_used = gpus.uses(observation.subject) if is_nvlink else None
        if is_used is not False:
            yield LinkFault(node, observation, by_state, is_nvlink, bool(is_used))


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
