"""A file of an earlier schema is brought up to date as a whole or not at all."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from tests.store.builders import an_incident
from watchtower.store.migrations import MIGRATIONS, schema_version
from watchtower.store.protocol import StoreError
from watchtower.store.sqlite import SqliteStore

STEP = """
ALTER TABLE pauses ADD COLUMN note TEXT NOT NULL DEFAULT '';
UPDATE pauses SET note = 'of version ' || length_s;
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of the first schema, with an incident and a pause."""
    path = tmp_path / "watchtower.db"
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(MIGRATIONS[1])
        db.execute("INSERT INTO pauses VALUES ('llama', 'eval', 'user', 1.0)")
        db.execute("PRAGMA user_version = 1")
    return path


@pytest.fixture
def next_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this the release after the present one, whose schema has one more column."""
    monkeypatch.setitem(MIGRATIONS, schema_version() + 1, STEP)


def version_of(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return db.execute("PRAGMA user_version").fetchone()[0]


def columns_of(path: Path) -> dict[str, set[tuple[str, str]]]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master ORDER BY name")]
        info = {name: db.execute(f"PRAGMA table_info({name})").fetchall() for name in names}
        info |= {name: db.execute(f"PRAGMA index_info({name})").fetchall() for name in names}
        return {name: {row[1:3] for row in rows} for name, rows in info.items()}


def read_notes(path: Path) -> list[tuple[str]]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT note FROM pauses").fetchall()


def test_every_version_has_a_step():
    assert set(MIGRATIONS) == set(range(1, schema_version() + 1))


def test_a_file_brought_up_to_date_is_like_a_new_one(path, tmp_path):
    SqliteStore(path).close()
    SqliteStore(tmp_path / "new" / "watchtower.db").close()
    assert version_of(path) == schema_version()
    assert columns_of(path) == columns_of(tmp_path / "new" / "watchtower.db")


@pytest.mark.usefixtures("next_release")
def test_a_step_changes_tables_and_what_is_in_them(path):
    SqliteStore(path).close()
    assert read_notes(path) == [("of version 1.0",)]
    assert version_of(path) == schema_version()


@pytest.mark.usefixtures("next_release")
def test_the_file_as_it_was_is_kept_beside_it(path):
    before = columns_of(path)
    SqliteStore(path).close()
    copy = path.with_name("watchtower.db.version-1")
    assert version_of(copy) == 1
    assert columns_of(copy) == before
    with contextlib.closing(sqlite3.connect(copy)) as db:
        assert db.execute("SELECT job FROM pauses").fetchall() == [("llama",)]


@pytest.mark.usefixtures("next_release")
def test_a_step_that_fails_leaves_the_file_as_it_was(path, monkeypatch):
    before = columns_of(path)
    monkeypatch.setitem(MIGRATIONS, schema_version(), f"{STEP}UPDATE absent SET a = 1;")
    with pytest.raises(StoreError, match="no such table: absent"):
        SqliteStore(path)
    assert version_of(path) == 1
    assert columns_of(path) == before
    monkeypatch.setitem(MIGRATIONS, schema_version(), STEP)
    SqliteStore(path).close()
    assert read_notes(path) == [("of version 1.0",)]


@pytest.mark.usefixtures("next_release")
def test_a_copy_that_cannot_be_made_stops_the_start_and_changes_nothing(path):
    path.with_name("watchtower.db.version-1.part").mkdir()
    with pytest.raises(StoreError, match=r"cannot copy .* free disk space"):
        SqliteStore(path)
    assert version_of(path) == 1


def test_the_node_and_the_shadow_mode_of_an_incident_are_stored(tmp_path):
    store = SqliteStore(tmp_path / "watchtower.db")
    incident = an_incident(only_node="n1", shadow=True)
    store.save_incident(incident).result()
    assert store.recall().incidents == (incident,)
    changed = an_incident(only_node="", shadow=False)
    store.save_incident(changed).result()
    assert store.recall().incidents == (changed,)
    store.close()
