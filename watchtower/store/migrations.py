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

SCHEMA_VERSION = 10

WAL_LIMIT_BYTES = 64 * 1024 * 1024
"""Bytes to which the write-ahead log shrinks after a burst. The largest batch of dumps fits."""

MIGRATIONS = {
    1: """
ALTER TABLE incidents ADD COLUMN evidence_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE incidents ADD COLUMN acked_at DOUBLE PRECISION;
ALTER TABLE incidents ADD COLUMN acked_by TEXT NOT NULL DEFAULT '';
ALTER TABLE incidents ADD COLUMN ack_note TEXT NOT NULL DEFAULT '';
UPDATE incidents SET evidence_bytes = LENGTH(evidence) WHERE evidence IS NOT NULL;
ALTER TABLE dumps ADD COLUMN taken_at DOUBLE PRECISION NOT NULL DEFAULT 0;
ALTER TABLE dumps ADD COLUMN size_bytes INTEGER NOT NULL DEFAULT 0;
UPDATE dumps SET size_bytes = LENGTH(batch),
    taken_at = received_at - json_extract(batch, '$.held_s');
DROP INDEX dumps_by_age;
ALTER TABLE generations ADD COLUMN seen_at DOUBLE PRECISION NOT NULL DEFAULT 0;
UPDATE generations SET seen_at = CAST(strftime('%s', 'now') AS REAL);
""",
    2: """
ALTER TABLE incidents ADD COLUMN verdicts TEXT NOT NULL DEFAULT '[]';
""",
    3: """
ALTER TABLE generations ADD COLUMN owner TEXT NOT NULL DEFAULT '';
""",
    # Rebuilt, because SQLite before 3.35 cannot drop a column.
    4: """
CREATE TABLE evidence (
    incident TEXT PRIMARY KEY,
    body TEXT NOT NULL
);
INSERT INTO evidence SELECT id, evidence FROM incidents WHERE evidence IS NOT NULL;
CREATE TABLE incidents_without_evidence (
    id TEXT PRIMARY KEY,
    job TEXT NOT NULL,
    generation INTEGER NOT NULL,
    status TEXT NOT NULL,
    opened_at DOUBLE PRECISION NOT NULL,
    updated_at DOUBLE PRECISION NOT NULL,
    closed_at DOUBLE PRECISION,
    verdict TEXT NOT NULL,
    evidence_bytes INTEGER NOT NULL DEFAULT 0,
    acked_at DOUBLE PRECISION,
    acked_by TEXT NOT NULL DEFAULT '',
    ack_note TEXT NOT NULL DEFAULT '',
    verdicts TEXT NOT NULL DEFAULT '[]'
);
INSERT INTO incidents_without_evidence
SELECT id, job, generation, status, opened_at, updated_at, closed_at, verdict, evidence_bytes,
    acked_at, acked_by, ack_note, verdicts FROM incidents;
DROP TABLE incidents;
ALTER TABLE incidents_without_evidence RENAME TO incidents;
""",
    5: """
ALTER TABLE incidents ADD COLUMN identity TEXT NOT NULL DEFAULT '{}';
""",
    # Files of versions before 2 may have no table of mutes.
    6: """
CREATE TABLE IF NOT EXISTS mutes (
    job TEXT PRIMARY KEY,
    since DOUBLE PRECISION NOT NULL,
    until DOUBLE PRECISION NOT NULL,
    reason TEXT NOT NULL
);
CREATE TABLE silences (
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    since DOUBLE PRECISION NOT NULL,
    until DOUBLE PRECISION NOT NULL,
    reason TEXT NOT NULL,
    silenced_by TEXT NOT NULL,
    PRIMARY KEY (kind, name)
);
INSERT INTO silences
SELECT upper(hex(randomblob(13))), 'job', job, since, until, reason, '' FROM mutes;
DROP TABLE mutes;
ALTER TABLE incidents ADD COLUMN only_node TEXT NOT NULL DEFAULT '';
ALTER TABLE incidents ADD COLUMN shadow INTEGER NOT NULL DEFAULT 0;
""",
    7: """
ALTER TABLE incidents ADD COLUMN sharer TEXT NOT NULL DEFAULT '';
ALTER TABLE dumps ADD COLUMN sharer TEXT NOT NULL DEFAULT '';
""",
    8: """
ALTER TABLE incidents ADD COLUMN summary_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE incidents ADD COLUMN facts TEXT NOT NULL DEFAULT '{}';
ALTER TABLE incidents ADD COLUMN cause TEXT NOT NULL DEFAULT '';
ALTER TABLE incidents ADD COLUMN domain TEXT NOT NULL DEFAULT '';
ALTER TABLE incidents ADD COLUMN job_user TEXT NOT NULL DEFAULT '';
UPDATE incidents SET cause = COALESCE(json_extract(verdict, '$.cause'), ''),
    domain = COALESCE(json_extract(verdict, '$.domain'), '') WHERE json_valid(verdict);
UPDATE incidents SET job_user = COALESCE(json_extract(identity, '$.user'), '')
    WHERE json_valid(identity);
CREATE TABLE suspects (
    incident TEXT NOT NULL,
    node TEXT NOT NULL,
    place TEXT NOT NULL,
    PRIMARY KEY (incident, node, place)
);
INSERT INTO suspects
SELECT DISTINCT incidents.id, json_extract(suspect.value, '$.node'),
    COALESCE(json_extract(suspect.value, '$.where'), '')
FROM incidents, json_each(
    CASE WHEN json_valid(verdict) THEN verdict ELSE '{}' END, '$.suspects') AS suspect
WHERE suspect.key < 256 AND json_extract(suspect.value, '$.node') IS NOT NULL;
""",
    # Files of versions before 9 have no table of series.
    9: """
CREATE TABLE IF NOT EXISTS series (
    incident TEXT NOT NULL,
    node TEXT NOT NULL,
    sharer TEXT NOT NULL,
    taken_at DOUBLE PRECISION NOT NULL,
    size_bytes INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (incident, node)
);
CREATE TABLE series_of_launches (
    incident TEXT NOT NULL,
    node TEXT NOT NULL,
    launch TEXT NOT NULL DEFAULT '',
    sharer TEXT NOT NULL,
    taken_at DOUBLE PRECISION NOT NULL,
    size_bytes INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (incident, node, launch)
);
INSERT INTO series_of_launches
SELECT incident, node,
    CASE WHEN json_valid(body) THEN COALESCE(json_extract(body, '$.launch'), '') ELSE '' END,
    sharer, taken_at, size_bytes, body FROM series;
DROP TABLE series;
ALTER TABLE series_of_launches RENAME TO series;
""",
}
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
