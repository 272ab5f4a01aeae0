"""Which observations of a node are about one of its processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from watchtower.wire.observations import Observation


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
