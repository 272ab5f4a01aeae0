"""Rows of jobs that wait for the next tick: one row a job, however often it changes.

What the tower has learned of a job may be stored a moment later. An incident and dumps may not, and
wait for no more than one transaction of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from watchtower.core.fleet.quotas import Quota
from watchtower.core.fleet.shares import CALM, Candidate, rank_fairly
from watchtower.store.values import GenerationRow, PauseRow

MAX_PENDING = 8192
"""Rows that wait; an owner may add more while it has less than is left."""

MAX_ROWS = 256
"""Rows in one transaction, and ..."""

MAX_PROCESSES = 32_768
"""... about so many processes named in them: some 10 ms of the writer thread."""

Row = GenerationRow | PauseRow


@dataclass(slots=True)
class _Pending:
    owner: str
    since: float
    make: Callable[[], Row]


class PendingRows:
    """Rows by what they are of. Not thread-safe."""

    def __init__(self) -> None:
        self._rows: dict[str, _Pending] = {}
        self._quota = Quota()

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, key: str, owner: str, since: float, make: Callable[[], Row]) -> bool:
        """Add a row, which `make` makes when it is taken. It replaces the row that waits under this
        key. Return False if there is no room for another row.
        """
        waiting = self._rows.get(key)
        if waiting is not None:
            waiting.make = make
            return True
        if not self._quota.has_room(owner, MAX_PENDING):
            return False
        self._rows[key] = _Pending(owner, since, make)
        self._quota.add(owner, 1)
        return True

    def take(self) -> list[Row]:
        """Take the rows of one transaction; owners come by turns."""
        candidates = (Candidate(row.owner, CALM, row.since, key) for key, row in self._rows.items())
        rows, processes = list[Row](), 0
        for each in rank_fairly(candidates)[:MAX_ROWS]:
            if processes >= MAX_PROCESSES:
                break
            pending = self._rows.pop(each.name)
            self._quota.add(pending.owner, -1)
            rows.append(row := pending.make())
            if isinstance(row, GenerationRow):
                processes += len(row.past.processes)
        return rows
