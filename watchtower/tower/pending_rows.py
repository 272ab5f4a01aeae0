"""Rows of jobs that wait for the next tick: one row per job, also if it changes often.

Attempts and pauses may be stored a moment later. Incidents and dumps are stored at once, and wait
for at most one transaction of these rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from watchtower.service.sharing import CALM, Contender, Quota, rank_fairly
from watchtower.store.values import GenerationRow, PauseRow

MAX_PENDING = 8192
"""Waiting rows. An owner may add rows while it has fewer than are free."""

MAX_ROWS = 256
"""Rows in one transaction."""

MAX_PROCESSES = 32_768
"""Processes in the rows of one transaction, approximately: about 10 ms of the writer thread."""

Row = GenerationRow | PauseRow


@dataclass(slots=True)
class _Pending:
    owner: str
    since: float
    make: Callable[[], Row]


class PendingRows:
    """Waiting rows by key. Not thread-safe."""

    def __init__(self) -> None:
        self._rows: dict[str, _Pending] = {}
        self._quota = Quota()

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, key: str, owner: str, since: float, make: Callable[[], Row]) -> bool:
        """Add a row, in place of a waiting row of the same key. Return False if there are too many.

        `make` is called when the row is taken.
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
        """Remove and return the rows of one transaction. Owners take turns."""
        contenders = (Contender(row.owner, CALM, row.since, key) for key, row in self._rows.items())
        rows, processes = list[Row](), 0
        for each in rank_fairly(contenders)[:MAX_ROWS]:
            if processes >= MAX_PROCESSES:
                break
            pending = self._rows.pop(each.name)
            self._quota.add(pending.owner, -1)
            rows.append(row := pending.make())
            if isinstance(row, GenerationRow):
                processes += len(row.past.processes)
        return rows
