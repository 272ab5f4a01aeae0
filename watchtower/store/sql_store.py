"""The store in a database, whichever it is: all that it writes, reads and deletes.

One thread writes, and a future is done after its commit. Data over the limits is deleted in small
batches between the writes.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from watchtower.incidents.incident import Ack, Delivery, Feedback, Incident, Silence
from watchtower.incidents.incident_filter import ALL_INCIDENTS, IncidentFilter
from watchtower.service.calls import DaemonExecutor, Executor, InlineExecutor
from watchtower.service.sharing import TokenBucket
from watchtower.store import incident_rows, rows
from watchtower.store.database import Database, once_more
from watchtower.store.grouped_writes import GroupedWrites
from watchtower.store.incident_rows import as_sql
from watchtower.store.lease import Lease
from watchtower.store.protocol import Store
from watchtower.store.retention import MB, Retention, prune
from watchtower.store.rows import read_deliveries, save_feedback
from watchtower.store.values import (
    AlertRow,
    AttemptRow,
    DumpRow,
    PauseRow,
    SeriesRow,
)
from watchtower.wire.dumps import SentBatch

CLOSE_S = 1.0
"""Seconds to close it. After that the kernel closes it, and no acknowledged write is lost."""

PRUNE_AFTER_BYTES = 16 * MB
"""After this many bytes of written dumps, data over the limits is deleted at once."""

PAGE = 64
"""Batches of dumps in one read, about 20 KB each. Writes can be executed between two reads."""

PAGE_BYTES = 16 * MB
"""Bytes in one read, at least one batch: a decoded batch is many times as large."""

_T = TypeVar("_T")


class SqlStore(Store, ABC):
    """The store. The writer thread executes the calls in order. What each does: see `Store`."""

    def __init__(self, keep: Retention | None, *, inline: bool) -> None:
        """`inline`: there is no thread, and every call is done when it returns."""
        self.failure: Exception | None = None
        self.lease: Lease | None = None
        self.set_aside: Path | None = None
        self._keep = keep or Retention()
        self._unpruned_bytes = 0
        self._thread: Executor = InlineExecutor() if inline else DaemonExecutor("store")
        commits = TokenBucket(math.inf, 0.0) if inline else None
        self._writes = GroupedWrites(self._thread, self._transaction, commits)

    @property
    @abstractmethod
    def _db(self) -> Database:
        """The database, for the writer thread only. It is opened now if it is not open."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Database]:
        """Begin a transaction, in the writer thread. At its end it is committed or undone.

        It fails if what is written would not be found again.
        """

    def claim(self) -> Future[bool]:
        return self._thread.submit(lambda: True)

    def shared_key(self, name: str, new: str) -> str:
        return ""

    def save_incident(self, incident: Incident) -> Future[None]:
        return self.write(lambda db: incident_rows.save_incident(db, incident))

    def save_dumps(
        self, job: str, sent: SentBatch, received_at: float, sharer: str = ""
    ) -> Future[None]:
        future = self._writes.insert(rows.insert_dumps(job, sharer, sent, received_at))
        self._unpruned_bytes += len(sent.body)
        if self._unpruned_bytes > PRUNE_AFTER_BYTES:
            self._unpruned_bytes = 0
            self.prune(received_at)
        return future

    def save_series(self, row: SeriesRow) -> Future[None]:
        return self.write(lambda db: rows.save_series(db, row))

    def series(self, incident: str) -> Future[list[SeriesRow]]:
        return self.read(lambda db: rows.read_series(db, incident))

    def dumps(
        self, job: str, since: float, until: float | None = None, after: DumpRow | None = None
    ) -> Future[list[DumpRow]]:
        """Read dumps of a job between `since` and `until`, newest first, at most `PAGE` batches.

        `after` is the last batch of the page before.
        """
        at, ident = (after.taken_at, after.sent.batch.id) if after else (until or 1e12, "")
        row = (job, since, at, at, ident, PAGE)

        def read(db: Database) -> list[DumpRow]:
            found, size = list[DumpRow](), 0
            for batch, taken_at in db.execute(rows.DUMPS, row):
                found.append(DumpRow(sent=rows.read_batch(batch), taken_at=taken_at))
                size += len(found[-1].sent.body)
                if size >= PAGE_BYTES:
                    break
            return found

        return self.read(read)

    def save_rows(self, learned: Sequence[AttemptRow | PauseRow]) -> Future[None]:
        return self.write(lambda db: rows.save_learned(db, learned))

    def fade_pauses(self, share: float) -> Future[None]:
        fade = "UPDATE pauses SET length_s = length_s * ?"
        return self.write(lambda db: db.execute(fade, (share,)))

    def save_ack(self, incident_id: str, ack: Ack) -> Future[bool]:
        row = (ack.at, ack.by, ack.note, incident_id)
        query = "UPDATE incidents SET acked_at = ?, acked_by = ?, ack_note = ? WHERE id = ?"
        return self._writes.add(lambda db: db.execute(query, row).rowcount > 0)

    def save_feedback(self, given: Feedback) -> Future[None]:
        return self.write(lambda db: save_feedback(db, given))

    def save_alert(self, row: AlertRow) -> Future[None]:
        return self.write(lambda db: rows.save_alert(db, row))

    def remove_alert(
        self, destination: str, incident: str, delivered_at: float | None = None
    ) -> Future[None]:
        return self.write(lambda db: rows.remove_alert(db, destination, incident, delivered_at))

    def deliveries(self, incident: str) -> Future[tuple[Delivery, ...]]:
        return self.read(lambda db: read_deliveries(db, incident))

    def save_silence(self, silence: Silence) -> Future[None]:
        return self.write(lambda db: rows.save_silence(db, silence))

    def remove_silence(self, ident: str) -> Future[None]:
        return self.write(lambda db: db.execute("DELETE FROM silences WHERE id = ?", (ident,)))

    def prune(self, wall: float) -> Future[None]:
        """Delete one batch of data over the limits, and queue the next one behind other calls."""

        def prune_batch() -> bool:
            with self._transaction() as db:
                return prune(db, self._keep, wall)

        def prune_all() -> None:
            if once_more(prune_batch):
                with contextlib.suppress(RuntimeError):  # the tower stops
                    self.prune(wall)

        return self._thread.submit(prune_all)

    def incidents(
        self, chosen: IncidentFilter = ALL_INCIDENTS, limit: int = 100
    ) -> Future[list[Incident]]:
        where, values = as_sql(chosen)
        order = "ORDER BY opened_at DESC, id DESC LIMIT ?"
        query = f"SELECT {incident_rows.INCIDENT}, NULL FROM incidents {where} {order}"
        return self.read(
            lambda db: [
                incident_rows.read_incident(row) for row in db.execute(query, (*values, limit))
            ]
        )

    def incident(self, incident_id: str, *, with_case: bool = True) -> Future[Incident | None]:
        query = (
            incident_rows.INCIDENT_WITH_CASE if with_case else incident_rows.INCIDENT_WITHOUT_CASE
        )

        def read(db: Database) -> Incident | None:
            row = db.execute(query, (incident_id,)).fetchone()
            return incident_rows.read_incident(row) if row else None

        return self.read(read)

    def summary(self, incident_id: str) -> Future[bytes | None]:
        return self.read(lambda db: incident_rows.read_summary(db, incident_id))

    def incident_ids(self, prefix: str, limit: int) -> Future[list[tuple[str, str]]]:
        query = "SELECT id, job FROM incidents WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
        row = (prefix, f"{prefix}\U0010ffff", limit)
        return self.read(lambda db: db.execute(query, row).fetchall())

    def write(self, work: Callable[[Database], object]) -> Future[None]:
        """Queue a write. The future is done after its commit."""

        def write(db: Database) -> None:
            work(db)

        return self._writes.add(write)

    def read(self, call: Callable[[Database], _T]) -> Future[_T]:
        """Queue a read."""
        return self._thread.submit(lambda: once_more(lambda: call(self._db)))
