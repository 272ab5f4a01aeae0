"""The store in one SQLite file (WAL): opened, locked, found again, and moved away if damaged."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import datetime, timezone
from pathlib import Path
from typing import TextIO

import msgspec

from watchtower.store import sql_store
from watchtower.store.file_state import advise, inode_of, is_damaged, lacks_room, lock_file
from watchtower.store.migrations import open_file, read_file, schema_version
from watchtower.store.protocol import StoreError
from watchtower.store.retention import Retention
from watchtower.store.rows import recall_state
from watchtower.store.sql_store import SqlStore
from watchtower.store.values import StartupState

log = logging.getLogger("watchtower.store")


class SqliteStore(SqlStore):
    """The store in a file."""

    advice = "free disk space in the data folder, or check its owner"

    def __init__(self, path: Path, keep: Retention | None = None, *, inline: bool = False) -> None:
        """Open the file, create it, or migrate an older one. Raises StoreError.

        On a full disk the file is opened later, with the first write or read that succeeds.
        `inline`: there is no thread, and every call is done when it returns.
        """
        super().__init__(keep, inline=inline)
        self._path = path
        self._open: sqlite3.Connection | None = None
        self._inode = (0, 0)
        self._lock: TextIO | None = None
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

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._find_file() as db:
            db.execute("BEGIN")  # else each savepoint would be a transaction
            yield db

    def _release(self) -> None:
        if self._thread.stop(sql_store.CLOSE_S) and self._lock is not None:
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

    def probe(self) -> Future[None]:
        def probe() -> None:
            with self._find_file() as db:
                db.execute(f"PRAGMA user_version = {schema_version()}")

        return self._thread.submit(probe)

    def check(self) -> Future[None]:
        def check() -> None:
            self._find_file()

        return self._thread.submit(check)

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
