"""The schema as numbered steps, and how the file of SQLite is brought up to date.

A step is a file `schema/NUMBER.sql`: the SQL from the version before. All that a store lacks is one
transaction. A copy of the old file stays beside it, so that the older release
can run again. A file of a newer release is refused and not changed.
"""

from __future__ import annotations

import contextlib
import sqlite3
from importlib.resources import files
from pathlib import Path

from watchtower.store.file_state import make_private_file
from watchtower.store.protocol import StoreError

WAL_LIMIT_BYTES = 64 * 1024 * 1024
"""Bytes to which the write-ahead log shrinks after a burst. The largest batch of dumps fits."""

MIGRATIONS = {
    int(step.name.removesuffix(".sql")): step.read_text("utf-8")
    for step in files("watchtower.store").joinpath("schema").iterdir()
}
"""The SQL of each version, from the one before; the first one from an empty store."""


def schema_version() -> int:
    """Return the version that this release needs."""
    return max(MIGRATIONS)


def steps_after(version: int, where: str, otherwise: str) -> str:
    """Return the SQL that brings a store of this version up to date.

    Raises StoreError, with what else to do, if a newer release has written it.
    """
    if not 0 <= version <= schema_version():
        raise StoreError(
            f"the store {where} has schema version {version}, but this release needs "
            f"{schema_version()}: run the release that wrote it, or {otherwise}"
        )
    return "".join(MIGRATIONS[number] for number in range(version + 1, schema_version() + 1))


def open_file(path: Path) -> sqlite3.Connection:
    """Open the file, or create it. Raises StoreError, sqlite3.Error."""
    make_private_file(path)
    db = sqlite3.connect(path)
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        steps = steps_after(version, str(path), "use another --data-dir")
        if version and steps:
            _keep_copy(db, path, version)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")  # an acknowledged write survives a power failure
        db.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
        _bring_up(db, steps)
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
        if version != schema_version():
            raise StoreError(f"it has schema version {version}, not {schema_version()}")
    except BaseException:
        db.close()
        raise
    return db


def _bring_up(db: sqlite3.Connection, steps: str) -> None:
    stamp = f"PRAGMA user_version = {schema_version()};"
    try:
        db.executescript(f"BEGIN IMMEDIATE;\n{steps}\n{stamp}\nCOMMIT;")
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
            f"migration to version {schema_version()}: {error}; the store is unchanged: free disk "
            "space and start again"
        ) from error
