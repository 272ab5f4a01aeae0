"""What waits for the store: unfinished writes, rows of jobs, and incidents that are not stored.

Rows of attempts and pauses may be stored a moment later. Incidents and dumps are stored at once,
and wait for at most one transaction of these rows. While the store fails, much may wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace

from watchtower.incidents.incident import Incident
from watchtower.service.sharing import CALM, Contender, Quota, rank_fairly
from watchtower.store.values import AttemptRow, PauseRow

STORE_WAIT_S = 4.0
"""Seconds that a request waits until its message is stored. An agent sends again after 5 s."""

STORE_HANGS_S = 30.0
"""Seconds that a write in the background may take, such as the first one after a large deletion."""


@dataclass(frozen=True, slots=True)
class _Write:
    future: Future[None]
    since: float


class OpenWrites:
    """Unfinished writes, in the order in which the store executes them."""

    def __init__(self, patience_s: float) -> None:
        """A write that takes longer than `patience_s` seconds hangs."""
        self._patience_s = patience_s
        self._writes: dict[object, _Write] = {}

    def begin(self, key: object, save: Callable[[], Future[None]]) -> Future[None] | None:
        """Return the write of this key. Start it if it has not started.

        Return None while an earlier write hangs: further writes would only fill the memory.
        """
        if self.hanging_s():
            return None
        if key not in self._writes:
            self._writes[key] = _Write(save(), time.monotonic())
        return self._writes[key].future

    def take_done(self) -> list[Future[None]]:
        """Remove and return the writes that are done."""
        done: list[Future[None]] = []
        while self._writes and (first := next(iter(self._writes.items())))[1].future.done():
            done.append(self._writes.pop(first[0]).future)
        return done

    def __len__(self) -> int:
        """Return the number of unfinished writes."""
        return sum(not write.future.done() for write in self._writes.values())

    def oldest_s(self) -> float:
        """Return for how many seconds the oldest unfinished write has waited; 0 without one."""
        since = next((w.since for w in self._writes.values() if not w.future.done()), None)
        return 0.0 if since is None else time.monotonic() - since

    def hanging_s(self) -> float:
        """Return for how many seconds the first write hangs; 0 if it does not hang."""
        now = time.monotonic()
        first = next(iter(self._writes.values()), None)
        since = now if first is None or first.future.done() else first.since
        return now - since if now - since >= self._patience_s else 0.0


MAX_PENDING = 8192
"""Waiting rows. An owner may add rows while it has fewer than are free."""

MAX_ROWS = 256
"""Rows in one transaction."""

MAX_PROCESSES = 32_768
"""Processes in the rows of one transaction, approximately: about 10 ms of the writer thread."""

Row = AttemptRow | PauseRow


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
            if isinstance(row, AttemptRow):
                processes += len(row.past.processes)
        return rows


MAX_UNSAVED = 1000
"""Incidents that wait in memory while the store fails. Owners share this number. Further incidents
are only logged."""

MAX_EVIDENCE_BYTES = 256 * 1024 * 1024
"""Bytes of the cases of these incidents. Above it the largest case is dropped, and its incident is
stored without a case."""


class Unsaved:
    """The newest state of each waiting incident, by id."""

    def __init__(self) -> None:
        self._incidents: dict[str, Incident] = {}
        self._quota = Quota()
        self._evidence_bytes = 0

    def __contains__(self, ident: str) -> bool:
        return ident in self._incidents

    def __iter__(self) -> Iterator[Incident]:
        return iter(list(self._incidents.values()))

    def find(self, ident: str) -> Incident | None:
        """Return the waiting incident with this id; None if no such incident waits."""
        return self._incidents.get(ident)

    def put(self, incident: Incident) -> bool:
        """Add an incident, in place of an earlier state of it. Return False if there are too many.

        An incident without its case gets the case and the summary of the earlier state.
        """
        earlier = self._incidents.get(incident.id)
        if earlier is None:
            if not self._quota.has_room(incident.sharer, MAX_UNSAVED):
                return False
            self._quota.add(incident.sharer, 1)
        elif incident.evidence is None:
            incident = replace(incident, evidence=earlier.evidence, summary=earlier.summary)
        self._set(incident)
        while self._evidence_bytes > MAX_EVIDENCE_BYTES:
            largest = max(self._incidents.values(), key=_evidence_bytes)
            self._set(replace(largest, evidence=None, summary=None))
        return True

    def note_ack(self, incident: Incident) -> None:
        """Add a stored acknowledgement to the waiting incident, so that views show it."""
        waiting = self._incidents.get(incident.id)
        if waiting is not None:
            self._incidents[incident.id] = replace(waiting, ack=incident.ack)

    def remove(self, ident: str) -> None:
        """Remove an incident that is stored."""
        incident = self._incidents.pop(ident)
        self._evidence_bytes -= _evidence_bytes(incident)
        self._quota.add(incident.sharer, -1)

    def _set(self, incident: Incident) -> None:
        before = self._incidents.get(incident.id)
        self._evidence_bytes += _evidence_bytes(incident) - (
            _evidence_bytes(before) if before else 0
        )
        self._incidents[incident.id] = incident


def _evidence_bytes(incident: Incident) -> int:
    return len(incident.evidence or b"") + len(incident.summary or b"")
