"""Which GPUs of a node the ranks of a job use. Other jobs may use the rest of the node."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from watchtower.wire.observations import Observation

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
