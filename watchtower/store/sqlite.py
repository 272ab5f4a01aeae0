"""The store in one SQLite file (WAL). One thread writes, and a future is done after its commit.

Data over the limits is deleted in small batches between the writes.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import datetime, timezone
from pathlib import Path
from typing import TextIO

import msgspec

from watchtower.incidents.incident import Ack, Delivery, Feedback, Incident, Silence
from watchtower.incidents.incident_filter import ALL_INCIDENTS, IncidentFilter
from watchtower.service.calls import DaemonExecutor, Executor, InlineExecutor
from watchtower.service.sharing import TokenBucket
from watchtower.store import incident_rows, rows
from watchtower.store.file_state import advise, inode_of, is_damaged, lacks_room, lock_file
from watchtower.store.grouped_writes import GroupedWrites
from watchtower.store.incident_rows import as_sql
from watchtower.store.migrations import SCHEMA_VERSION, open_file, read_file
from watchtower.store.protocol import Store, StoreError
from watchtower.store.retention import MB, Retention, prune
from watchtower.store.rows import read_deliveries, recall_state, save_feedback
from watchtower.store.values import (
    AlertRow,
    AttemptRow,
    DumpRow,
    PauseRow,
    SeriesRow,
    StartupState,
)
from watchtower.wire.dumps import SentBatch

log = logging.getLogger("watchtower.store")

CLOSE_S = 1.0
"""Seconds to close the file. After that the kernel closes it, and no acknowledged write is lost."""

PRUNE_AFTER_BYTES = 16 * MB
"""After this many bytes of written dumps, data over the limits is deleted at once."""

PAGE = 64
"""Batches of dumps in one read, about 20 KB each. Writes can be executed between two reads."""

PAGE_BYTES = 16 * MB
"""Bytes in one read, at least one batch: a decoded batch is many times as large."""


class SqliteStore(Store):
    """The store. The writer thread executes the calls in order. What each does: see `Store`."""

    def __init__(self, path: Path, keep: Retention | None = None, *, inline: bool = False) -> None:
        """Open the file, create it, or migrate an older one. Raises StoreError.

        On a full disk the file is opened later, with the first write or read that succeeds.
        `inline`: there is no thread, and every call is done when it returns.
        """
        self.failure: Exception | None = None
        """The error if the file could not be opened at the start, else None."""
        self.set_aside: Path | None = None
        """New path of the last run's file if it was damaged, else None."""
        self._path = path
        self._open: sqlite3.Connection | None = None
        self._inode = (0, 0)
        self._keep = keep or Retention()
        self._unpruned_bytes = 0
        self._lock: TextIO | None = None
        self._thread: Executor = InlineExecutor() if inline else DaemonExecutor("store")
        commits = TokenBucket(math.inf, 0.0) if inline else None
        self._writes = GroupedWrites(self._thread, self._find_file, commits)
        try:
            self._lock = lock_file(path)
            self._thread.submit(self._begin).result()
        except (sqlite3.Error, OSError) as error:
            if self._lock is not None and lacks_room(error):
                self.failure = error
                return
            self._release()
            raise StoreError(f"cannot open the store {path}: {error}; {advise(error)}") from error
        except StoreError:
            self._release()
            raise

    def _begin(self) -> None:
        """Open the file. If it is damaged, move it away and open a new one."""
        try:
            self._find_file()
        except sqlite3.DatabaseError as error:
            if not is_damaged(error):
                raise
            self._set_aside(error)

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        """Move a damaged file away and open a new one, so that the tower can start."""
        self._close()
        self._open = None
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        self.set_aside = self._path.with_name(f"{self._path.name}.damaged-{stamp}")
        for suffix in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self._path}{suffix}", f"{self.set_aside}{suffix}")
        log.error(
            "the store %s is damaged: %s; it was moved to %s and an empty one was created: "
            "incidents, silences and learned pauses of the last run are only in the old file",
            self._path,
            error,
            self.set_aside,
        )
        self._find_file()

    def close(self) -> None:
        """Execute the queued calls and close the file, within `CLOSE_S` seconds."""
        with contextlib.suppress(RuntimeError):  # closed already
            self._thread.submit(self._close)
        self._release()

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()

    @property
    def _db(self) -> sqlite3.Connection:
        """The database, for the writer thread only. It is opened now if it is not open yet."""
        if self._open is None:
            self._open = open_file(self._path)
            self._inode = inode_of(self._path)
        return self._open

    def _find_file(self) -> sqlite3.Connection:
        """Return the database. Raises OSError if its path leads to another file or to none."""
        db = self._db
        if inode_of(self._path) != self._inode:
            raise OSError(
                f"{self._path} was removed, replaced or hidden by a mount: restore it, or "
                "restart the tower to create a new one"
            )
        return db

    def _release(self) -> None:
        if self._thread.stop(CLOSE_S) and self._lock is not None:
            self._lock.close()

    def recall(self) -> StartupState:
        if self.failure is not None:
            return self._thread.submit(self._recall_without_room).result()
        try:
            return self._thread.submit(self._recall_or_begin).result()
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise StoreError(
                f"the store {self._path} is damaged: {error}; move it away to start with an empty "
                "one"
            ) from error

    def save_incident(self, incident: Incident) -> Future[None]:
        return self._write(lambda db: incident_rows.save_incident(db, incident))

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
        return self._write(lambda db: rows.save_series(db, row))

    def series(self, incident: str) -> Future[list[SeriesRow]]:
        return self._thread.submit(lambda: rows.read_series(self._db, incident))

    def dumps(
        self, job: str, since: float, until: float | None = None, after: DumpRow | None = None
    ) -> Future[list[DumpRow]]:
        """Read dumps of a job between `since` and `until`, newest first, at most `PAGE` batches.

        `after` is the last batch of the page before.
        """
        at, ident = (after.taken_at, after.sent.batch.id) if after else (until or 1e12, "")
        row = (job, since, at, at, ident, PAGE)

        def read() -> list[DumpRow]:
            found, size = list[DumpRow](), 0
            for batch, taken_at in self._db.execute(rows.DUMPS, row):
                found.append(DumpRow(sent=rows.read_batch(batch), taken_at=taken_at))
                size += len(batch)
                if size >= PAGE_BYTES:
                    break
            return found

        return self._thread.submit(read)

    def save_rows(self, learned: Sequence[AttemptRow | PauseRow]) -> Future[None]:
        return self._write(lambda db: rows.save_learned(db, learned))

    def fade_pauses(self, share: float) -> Future[None]:
        fade = "UPDATE pauses SET length_s = length_s * ?"
        return self._write(lambda db: db.execute(fade, (share,)))

    def save_ack(self, incident_id: str, ack: Ack) -> Future[bool]:
        row = (ack.at, ack.by, ack.note, incident_id)
        query = "UPDATE incidents SET acked_at = ?, acked_by = ?, ack_note = ? WHERE id = ?"

        return self._writes.add(lambda db: db.execute(query, row).rowcount > 0)

    def save_feedback(self, given: Feedback) -> Future[None]:
        return self._write(lambda db: save_feedback(db, given))

    def save_alert(self, row: AlertRow) -> Future[None]:
        return self._write(lambda db: rows.save_alert(db, row))

    def remove_alert(
        self, destination: str, incident: str, delivered_at: float | None = None
    ) -> Future[None]:
        return self._write(lambda db: rows.remove_alert(db, destination, incident, delivered_at))

    def deliveries(self, incident: str) -> Future[tuple[Delivery, ...]]:
        return self._thread.submit(lambda: read_deliveries(self._db, incident))

    def save_silence(self, silence: Silence) -> Future[None]:
        return self._write(lambda db: rows.save_silence(db, silence))

    def remove_silence(self, ident: str) -> Future[None]:
        return self._write(lambda db: db.execute("DELETE FROM silences WHERE id = ?", (ident,)))

    def prune(self, wall: float) -> Future[None]:
        """Delete one batch of data over the limits, and queue the next one behind other calls."""

        def prune_batch() -> None:
            with self._find_file() as db:
                is_more = prune(db, self._keep, wall)
            if is_more:
                with contextlib.suppress(RuntimeError):  # the tower stops
                    self.prune(wall)

        return self._thread.submit(prune_batch)

    def probe(self) -> Future[None]:

        def probe() -> None:
            with self._find_file() as db:
                db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

        return self._thread.submit(probe)

    def check_file(self) -> Future[None]:

        def check() -> None:
            self._find_file()

        return self._thread.submit(check)

    def incidents(
        self, chosen: IncidentFilter = ALL_INCIDENTS, limit: int = 100
    ) -> Future[list[Incident]]:
        where, values = as_sql(chosen)
        order = "ORDER BY opened_at DESC, id DESC LIMIT ?"
        query = f"SELECT {incident_rows.INCIDENT}, NULL FROM incidents {where} {order}"
        return self._thread.submit(
            lambda: [
                incident_rows.read_incident(row)
                for row in self._db.execute(query, (*values, limit))
            ]
        )

    def incident(self, incident_id: str, *, with_case: bool = True) -> Future[Incident | None]:
        query = (
            incident_rows.INCIDENT_WITH_CASE if with_case else incident_rows.INCIDENT_WITHOUT_CASE
        )

        def read() -> Incident | None:
            row = self._db.execute(query, (incident_id,)).fetchone()
            return incident_rows.read_incident(row) if row else None

        return self._thread.submit(read)

    def summary(self, incident_id: str) -> Future[bytes | None]:
        return self._thread.submit(lambda: incident_rows.read_summary(self._db, incident_id))

    def incident_ids(self, prefix: str, limit: int) -> Future[list[tuple[str, str]]]:
        query = "SELECT id, job FROM incidents WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
        row = (prefix, f"{prefix}\U0010ffff", limit)
        return self._thread.submit(lambda: self._db.execute(query, row).fetchall())

    def _write(self, work: Callable[[sqlite3.Connection], object]) -> Future[None]:
        def write(db: sqlite3.Connection) -> None:
            work(db)

        return self._writes.add(write)

    def _recall_or_begin(self) -> StartupState:
        try:
            return recall_state(self._db)
        except sqlite3.DatabaseError as error:
            if not is_damaged(error):
                raise
            self._set_aside(error)
            return recall_state(self._db)

    def _recall_without_room(self) -> StartupState:
        try:
            with contextlib.closing(read_file(self._path)) as db:
                return recall_state(db)
        except Exception as error:
            log.error("cannot read the state of the last run from %s: %s", self._path, error)
            return StartupState(pauses={}, attempts={}, incidents=())
