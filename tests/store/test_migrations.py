"""A file of an older release is brought up to date as a whole or not at all."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.store.builders import EVIDENCE, a_batch, an_incident
from watchtower.incidents.incident import JobFacts, SilenceKind
from watchtower.jobs.attempt import PastAttempt
from watchtower.jobs.ranks import ProcessKey
from watchtower.store.migrations import MIGRATIONS, SCHEMA_VERSION
from watchtower.store.protocol import StoreError
from watchtower.store.sqlite import SqliteStore

SCHEMA_1 = (Path(__file__).parent / "files" / "schema-1.sql").read_text("utf-8")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file as the release with schema version 1 wrote it."""
    path = tmp_path / "watchtower.db"
    incident, batch = an_incident(), a_batch("b1").batch
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(SCHEMA_1)
        row = (incident.id, incident.job, 1, "hung", 100.0, 100.0, None)
        verdict, case = (
            text.decode() for text in (msgspec.json.encode(incident.verdict), EVIDENCE)
        )
        db.execute(
            "INSERT INTO incidents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, verdict, case)
        )
        held = msgspec.json.encode(batch).decode().replace('"held_s":0.0', '"held_s":3.5')
        db.execute("INSERT INTO dumps VALUES ('b1', 'llama', 'n0', 50.0, ?)", (held,))
        db.execute("INSERT INTO pauses VALUES ('llama', 'eval', 'user', 30.0)")
        db.execute("""INSERT INTO generations VALUES ('llama', 3, 1.5, '[["n0", 4711, 99]]')""")
        db.execute("PRAGMA user_version = 1")
    return path


def version_of(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return db.execute("PRAGMA user_version").fetchone()[0]


def columns_of(path: Path) -> dict[str, set[tuple[str, str]]]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master ORDER BY name")]
        info = {name: db.execute(f"PRAGMA table_info({name})").fetchall() for name in names}
        info |= {name: db.execute(f"PRAGMA index_info({name})").fetchall() for name in names}
        return {name: {row[1:3] for row in rows} for name, rows in info.items()}


def test_what_version_1_kept_is_there_in_the_present_one(path):
    store = SqliteStore(path)
    startup = store.recall()
    (incident,) = startup.incidents
    (stored,) = store.dumps("llama", since=0.0).result()
    store.close()
    assert incident == an_incident(evidence=EVIDENCE)
    past = PastAttempt(
        number=3, typical_step_s=1.5, processes=frozenset({ProcessKey("n0", 4711, 99)})
    )
    assert startup.attempts == {"llama": past}
    assert startup.pauses["llama"][0].length_s == 30.0
    assert (stored.sent.batch.id, stored.taken_at) == ("b1", 46.5)
    assert version_of(path) == SCHEMA_VERSION


def test_a_file_brought_up_to_date_is_like_a_new_one(path, tmp_path):
    SqliteStore(path).close()
    SqliteStore(tmp_path / "new" / "watchtower.db").close()
    assert columns_of(path) == columns_of(tmp_path / "new" / "watchtower.db")


def test_the_file_as_it_was_is_kept_beside_it(path):
    SqliteStore(path).close()
    copy = path.with_name("watchtower.db.version-1")
    assert version_of(copy) == 1
    with contextlib.closing(sqlite3.connect(copy)) as db:
        assert db.execute("SELECT id FROM incidents").fetchall() == [("01A",)]


def test_a_step_that_fails_leaves_the_file_as_it_was(path, monkeypatch):
    before = columns_of(path)
    monkeypatch.setitem(MIGRATIONS, 1, MIGRATIONS[1] + "UPDATE absent SET a = 1;")
    with pytest.raises(StoreError, match="no such table: absent"):
        SqliteStore(path)
    assert version_of(path) == 1
    assert columns_of(path) == before
    monkeypatch.undo()
    SqliteStore(path).close()
    assert version_of(path) == SCHEMA_VERSION


def test_a_copy_that_cannot_be_made_stops_the_start_and_changes_nothing(path):
    path.with_name("watchtower.db.version-1.part").mkdir()
    with pytest.raises(StoreError, match=r"cannot copy .* free disk space"):
        SqliteStore(path)
    assert version_of(path) == 1


def test_every_older_version_has_a_step():
    assert set(MIGRATIONS) == set(range(1, SCHEMA_VERSION))


def test_the_mutes_of_version_6_are_silences_of_jobs(tmp_path):
    path = tmp_path / "watchtower.db"
    store = SqliteStore(path)
    store.save_incident(an_incident()).result()
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("ALTER TABLE incidents DROP COLUMN only_node")
        db.execute("ALTER TABLE incidents DROP COLUMN shadow")
        drop_owners(db)
        db.execute("DROP TABLE silences")
        db.execute(
            "CREATE TABLE mutes (job TEXT PRIMARY KEY, since DOUBLE PRECISION NOT NULL,"
            " until DOUBLE PRECISION NOT NULL, reason TEXT NOT NULL)"
        )
        db.execute(
            "INSERT INTO mutes VALUES ('llama', 1.0, 2.0, 'new switch'), ('b', 1.0, 9.0, '')"
        )
        db.execute("PRAGMA user_version = 6")
    store = SqliteStore(path)
    first, second = store.recall().silences
    (incident,) = store.recall().incidents
    store.close()
    assert (first.kind, first.name) == (SilenceKind.JOB, "llama")
    assert (first.since, first.until, first.reason, first.by) == (1.0, 2.0, "new switch", "")
    assert len({first.id, second.id}) == 2
    assert len(first.id) == 26
    assert (incident.only_node, incident.shadow) == ("", False)


def drop_version_9(db: sqlite3.Connection) -> None:
    """Make the file as the release with schema version 8 wrote it."""
    db.execute("DROP TABLE summaries")
    db.execute("DROP INDEX incidents_by_summary")
    for name in ("status", "cause", "domain", "user"):
        db.execute(f"DROP INDEX incidents_by_{name}")
    for column in ("summary_bytes", "facts", "cause", "domain", "job_user"):
        db.execute(f"ALTER TABLE incidents DROP COLUMN {column}")
    for table in ("suspects", "feedback", "series"):
        db.execute(f"DROP TABLE {table}")
    db.execute("PRAGMA user_version = 8")


def drop_owners(db: sqlite3.Connection) -> None:
    drop_version_9(db)
    for table in ("incidents", "dumps"):
        db.execute(f"DROP INDEX {table}_by_sharer")
        db.execute(f"ALTER TABLE {table} DROP COLUMN sharer")


def test_the_owners_of_what_version_7_stored_are_unknown(tmp_path):
    path = tmp_path / "watchtower.db"
    store = SqliteStore(path)
    store.save_incident(an_incident(sharer="uid:1")).result()
    store.save_dumps("llama", a_batch("b1"), 5.0, "uid:1").result()
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        drop_owners(db)
        db.execute("PRAGMA user_version = 7")
    store = SqliteStore(path)
    assert store.recall().incidents == (an_incident(),)
    store.save_incident(an_incident(id="02", opened_at=200.0, sharer="uid:1")).result()
    assert [one.sharer for one in store.incidents().result()] == ["uid:1", ""]
    store.close()
    assert version_of(path) == SCHEMA_VERSION


def test_the_incidents_of_version_8_have_no_summary(tmp_path):
    path = tmp_path / "watchtower.db"
    store = SqliteStore(path)
    store.save_incident(an_incident(evidence=EVIDENCE)).result()
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        drop_version_9(db)
    store = SqliteStore(path)
    assert store.summary("01A").result() is None
    store.save_incident(an_incident(evidence=EVIDENCE, summary=b"c3VtbWFyeQ==")).result()
    assert store.summary("01A").result() == b"c3VtbWFyeQ=="
    store.close()
    assert version_of(path) == SCHEMA_VERSION


def test_the_series_of_version_9_have_the_launch_of_their_message(tmp_path):
    path = tmp_path / "watchtower.db"
    SqliteStore(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE series")
        db.execute(
            "CREATE TABLE series (incident TEXT, node TEXT, sharer TEXT, taken_at DOUBLE PRECISION,"
            " size_bytes INTEGER, body TEXT, PRIMARY KEY (incident, node))"
        )
        for node, body in (("n0", '{"launch": "l1"}'), ("n1", "{}"), ("n2", "torn")):
            db.execute("INSERT INTO series VALUES ('01A', ?, 'uid:1', 5.0, 2, ?)", (node, body))
        db.execute("PRAGMA user_version = 9")
    store = SqliteStore(path)
    rows = store.series("01A").result()
    assert [(row.node, row.launch, row.sharer, row.taken_at) for row in rows] == [
        ("n0", "l1", "uid:1", 5.0),
        ("n1", "", "uid:1", 5.0),
        ("n2", "", "uid:1", 5.0),
    ]
    store.save_series(replace(rows[0], launch="l2")).result()
    assert [row.launch for row in store.series("01A").result()] == ["l1", "l2", "", ""]
    store.close()
    assert version_of(path) == SCHEMA_VERSION


def test_the_facts_of_a_job_stay_with_its_incident(tmp_path):
    path = tmp_path / "watchtower.db"
    store = SqliteStore(path)
    known = JobFacts(ranks=8, user="alice", checkpoint_step=1200)
    store.save_incident(an_incident(facts=known)).result()
    store.save_incident(an_incident(facts=replace(known, dumps_in=8))).result()
    assert store.incident(an_incident().id).result().facts == replace(known, dumps_in=8)
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        drop_version_9(db)
    store = SqliteStore(path)
    assert store.recall().incidents == (an_incident(),)
    store.close()


def test_the_node_and_the_shadow_mode_of_an_incident_are_stored(tmp_path):
    store = SqliteStore(tmp_path / "watchtower.db")
    incident = an_incident(only_node="n1", shadow=True)
    store.save_incident(incident).result()
    assert store.recall().incidents == (incident,)
    changed = an_incident(only_node="", shadow=False)
    store.save_incident(changed).result()
    assert store.recall().incidents == (changed,)
    store.close()
