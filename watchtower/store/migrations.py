"""Opens the store's file: creates it, or migrates an older one to the current schema.

The migration is one transaction. A copy of the old file stays beside it, so that the older release
can run again. A file of a newer release is refused and not changed.
"""

from __future__ import annotations

import contextlib
import sqlite3
from importlib.resources import files
from pathlib import Path

from watchtower.store.file_state import make_private_file
from watchtower.store.protocol import StoreError

SCHEMA_VERSION = 1

WAL_LIMIT_BYTES = 64 * 1024 * 1024
"""Bytes to which the write-ahead log shrinks after a burst. The largest batch of dumps fits."""

MIGRATIONS: dict[int, str] = {}
"""SQL from each version to the next. Tables and indexes that are only new come from schema.sql."""


def open_file(path: Path) -> sqlite3.Connection:
    """Open the file, or create it. Raises StoreError, sqlite3.Error."""
    make_private_file(path)
    db = sqlite3.connect(path)
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, *MIGRATIONS, SCHEMA_VERSION):
            raise StoreError(
                f"the store {path} has schema version {version}, but this release needs "
                f"{SCHEMA_VERSION}: run the release that wrote it, or use another --data-dir"
            )
        if version in MIGRATIONS:
            _keep_copy(db, path, version)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")  # an acknowledged write survives a power failure
        db.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
        _bring_up(db, version)
    except BaseException:
        db.close()
        raise
    return db


def read_file(path: Path) -> sqlite3.Connection:
    """Open a file of the current schema for reading on a full disk.

    In exclusive mode SQLite needs no index file of the log. Raises StoreError, sqlite3.Error.
    """
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)
    try:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA query_only = ON")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version != SCHEMA_VERSION:
            raise StoreError(f"it has schema version {version}, not {SCHEMA_VERSION}")
    except BaseException:
        db.close()
        raise
    return db


def _bring_up(db: sqlite3.Connection, version: int) -> None:
    steps = [MIGRATIONS[number] for number in range(version, SCHEMA_VERSION) if version]
    steps.append(files("watchtower.store").joinpath("schema.sql").read_text("utf-8"))
    steps.append(f"PRAGMA user_version = {SCHEMA_VERSION};")
    try:
        db.executescript(f"BEGIN IMMEDIATE;\n{''.join(steps)}\nCOMMIT;")
    except sqlite3.Error:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def _keep_copy(db: sqlite3.Connection, path: Path, version: int) -> None:
    """Copy the file before a migration. An incomplete copy of an earlier try is replaced."""
    copy = path.with_name(f"{path.name}.version-{version}")
    part = copy.with_name(f"{copy.name}.part")
    try:
        part.unlink(missing_ok=True)
        make_private_file(part)
        with contextlib.closing(sqlite3.connect(part)) as target:
            db.backup(target)
        part.replace(copy)
    except (sqlite3.Error, OSError) as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise StoreError(
            f"cannot copy the store {path} (schema version {version}) to {copy} before the "
            f"migration to version {SCHEMA_VERSION}: {error}; the store is unchanged: free disk "
            "space and start again"
        ) from error
