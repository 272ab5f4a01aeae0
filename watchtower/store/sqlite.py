"""The store in one SQLite file (WAL): one writer thread, every write committed before it answers.

What is too much goes in small bites between the writes.
"""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TextIO

import msgspec

from watchtower.core.fleet.generation import PastGeneration
from watchtower.core.fleet.pace import Pause
from watchtower.store import rows
from watchtower.store.migrations import SCHEMA_VERSION, StoreError, open_file
from watchtower.store.records import Ack, Incident, Memory, Mute, StoredDumps
from watchtower.store.retention import MB, Retention, prune
from watchtower.wire.dumps import DumpBatch
from watchtower.worker import Worker

CLOSE_S = 1.0
"""A file that cannot be closed in this time is left to the kernel; what was acknowledged is in."""

PRUNE_AFTER_BYTES = 16 * MB
"""So much of dumps written asks for a bite at once, whoever else would ask for it later."""

PAGE = 64
"""Batches of dumps read at once, some 20 KB each: other writes get their turn in between."""


class SqliteStore:
    """Calls return futures: the writer thread does the work, in order."""

    def __init__(self, path: Path, keep: Retention | None = None) -> None:
        """Open or make the file, or bring an older one up to date. Raises StoreError."""
        self._path = path
        self._keep = keep or Retention()
        self._unpruned_bytes = 0
        self._lock: TextIO | None = None
        self._thread = Worker("store")
        try:
            self._lock = _lock(path)
            self._db = self._thread.submit(lambda: open_file(path)).result()
        except (sqlite3.Error, OSError) as error:
            self._release()
            what = "check the folder's owner and free space"
            if isinstance(error, sqlite3.DatabaseError) and "not a database" in str(error):
                what = "move the file away to begin an empty one"
            raise StoreError(f"cannot open the store {path}: {error}; {what}") from error
        except StoreError:
            self._release()
            raise

    def close(self) -> None:
        """Finish what was asked for and close the file, or leave it when that takes too long."""
        with contextlib.suppress(RuntimeError):  # closed already
            self._thread.submit(self._db.close)
        self._release()

    def _release(self) -> None:
        if self._thread.stop(CLOSE_S) and self._lock is not None:
            self._lock.close()

    def recall(self) -> Memory:
        """Read what a starting tower needs to know. Raises StoreError."""
        try:
            return self._thread.submit(self._recall).result()
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise StoreError(
                f"the store {self._path} is damaged: {error}; move it away to begin an empty one"
            ) from error

    def save_incident(self, incident: Incident) -> Future[None]:
        """Insert an incident, or bring it up to date. A missing case keeps the stored one."""
        return self._write(lambda db: rows.save_incident(db, incident))

    def save_dumps(self, batch: DumpBatch, received_at: float) -> Future[None]:
        """Keep a batch; one that is there already stays as it is."""

        def save() -> None:
            with self._db:
                self._unpruned_bytes += rows.save_dumps(self._db, batch, received_at)
            if self._unpruned_bytes > PRUNE_AFTER_BYTES:
                self._unpruned_bytes = 0
                with contextlib.suppress(RuntimeError):  # the tower stops
                    self.prune(received_at)

        return self._thread.submit(save)

    def dumps(
        self, job: str, since: float, until: float | None = None, after: StoredDumps | None = None
    ) -> Future[list[StoredDumps]]:
        """Read dumps of a job taken since then, newest first, `PAGE` at most; `after` goes on."""
        at, ident = (after.taken_at, after.batch.id) if after else (until or 1e12, "")
        row = (job, since, at, at, ident, PAGE)
        return self._thread.submit(
            lambda: [
                StoredDumps(batch=rows.decode(batch, DumpBatch), taken_at=taken_at)
                for batch, taken_at in self._db.execute(rows.DUMPS, row)
            ]
        )

    def save_pause(self, job: str, pause: Pause) -> Future[None]:
        """Remember the longest pause of a kind."""
        row = (job, pause.phase, pause.frame_class, pause.length_s)
        return self._write(lambda db: db.execute(rows.SAVE_PAUSE, row))

    def fade_pauses(self, share: float) -> Future[None]:
        """Keep this share of the length of every pause."""
        fade = "UPDATE pauses SET length_s = length_s * ?"
        return self._write(lambda db: db.execute(fade, (share,)))

    def save_generation(self, job: str, past: PastGeneration, seen_at: float) -> Future[None]:
        """Remember a job's last generation."""
        row = (job, past.number, past.typical_step_s, rows.encode(sorted(past.processes)), seen_at)
        return self._write(lambda db: db.execute(rows.SAVE_GENERATION, row))

    def save_ack(self, incident_id: str, ack: Ack) -> Future[bool]:
        """Note who looks after an incident; False when there is none of that id."""
        row = (ack.at, ack.by, ack.note, incident_id)
        query = "UPDATE incidents SET acked_at = ?, acked_by = ?, ack_note = ? WHERE id = ?"

        def save() -> bool:
            with self._db:
                return self._db.execute(query, row).rowcount > 0

        return self._thread.submit(save)

    def save_mute(self, mute: Mute) -> Future[None]:
        """Mute a job, or change how long."""
        row = (mute.job, mute.since, mute.until, mute.reason)
        return self._write(lambda db: db.execute(rows.SAVE_MUTE, row))

    def remove_mute(self, job: str) -> Future[None]:
        """Let a job page again."""
        return self._write(lambda db: db.execute("DELETE FROM mutes WHERE job = ?", (job,)))

    def prune(self, wall: float) -> Future[None]:
        """Remove a bite of what is more than is kept; the next one is queued behind other work."""

        def bite(db: sqlite3.Connection) -> None:
            if prune(db, self._keep, wall):
                with contextlib.suppress(RuntimeError):  # the tower stops
                    self.prune(wall)

        return self._write(bite)

    def probe(self) -> Future[None]:
        """Write a little that changes nothing, to see whether the disk takes it."""
        return self._write(lambda db: db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}"))

    def incidents(self, job: str | None = None, limit: int = 100) -> Future[list[Incident]]:
        """Read incidents, newest first, without their cases."""
        where, values = ("WHERE job = ?", (job,)) if job is not None else ("", ())
        query = (
            f"SELECT {rows.INCIDENT}, NULL FROM incidents {where} ORDER BY opened_at DESC LIMIT ?"
        )
        return self._thread.submit(
            lambda: [rows.read_incident(row) for row in self._db.execute(query, (*values, limit))]
        )

    def incident(self, incident_id: str) -> Future[Incident | None]:
        """Read one incident with its case; None when there is none of that id."""
        query = f"SELECT {rows.INCIDENT}, evidence FROM incidents WHERE id = ?"

        def read() -> Incident | None:
            row = self._db.execute(query, (incident_id,)).fetchone()
            return rows.read_incident(row) if row else None

        return self._thread.submit(read)

    def _write(self, work: Callable[[sqlite3.Connection], object]) -> Future[None]:
        def commit() -> None:
            with self._db:
                work(self._db)

        return self._thread.submit(commit)

    def _recall(self) -> Memory:
        pauses: dict[str, tuple[Pause, ...]] = {}
        for job, phase, frame_class, length_s in self._db.execute(rows.PAUSES):
            pause = Pause(phase=phase, frame_class=frame_class, length_s=length_s)
            pauses[job] = (*pauses.get(job, ()), pause)
        columns = "job, number, typical_step_s, processes"
        return Memory(
            pauses=pauses,
            generations={
                job: PastGeneration(
                    number=number,
                    typical_step_s=typical_step_s,
                    processes=rows.read_processes(job, processes),
                )
                for job, number, typical_step_s, processes in self._db.execute(
                    f"SELECT {columns} FROM generations"
                )
            },
            incidents=tuple(rows.read_incident(row) for row in self._db.execute(rows.LEFT_OPEN)),
            mutes=tuple(
                Mute(job=job, since=since, until=until, reason=reason)
                for job, since, until, reason in self._db.execute(
                    "SELECT job, since, until, reason FROM mutes"
                )
            ),
        )


def _lock(path: Path) -> TextIO:
    """Take the store for this process alone; the kernel gives it back however we end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_suffix(".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise StoreError(
            f"another tower uses {path.parent}: give each its own --data-dir"
        ) from None
    return lock
