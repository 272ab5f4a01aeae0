"""The store on a real file."""

import contextlib
import os
import re
import sqlite3
import threading
import time
from dataclasses import replace

import pytest

from tests.store.builders import EVIDENCE, a_batch, a_case, an_incident
from tests.store.test_retention import MB, NOW, a_large_batch, closed, prune_all, replace_unchecked
from watchtower.incidents.incident import JobFacts
from watchtower.jobs.attempt import PastAttempt
from watchtower.store.database import pack
from watchtower.store.protocol import StoreError
from watchtower.store.retention import Retention
from watchtower.store.sqlite import SqliteStore
from watchtower.store.values import AttemptRow, read_case


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "watchtower.db"


@pytest.fixture
def store(path):
    store = SqliteStore(path)
    yield store
    store.close()


def test_dumps_that_are_being_stored_while_the_tower_stops_are_stored(store, path, monkeypatch):
    monkeypatch.setattr("watchtower.store.sql_store.PRUNE_AFTER_BYTES", 0)
    gate = threading.Event()
    store._thread.submit(gate.wait)
    saving = store.save_dumps("llama", a_batch("b1"), 5.0)
    closing = threading.Thread(target=store.close)
    closing.start()
    while not store._thread._is_stopped:
        time.sleep(0.001)
    gate.set()
    closing.join(30)
    assert saving.result(30) is None
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM dumps").fetchone() == (1,)
    db.close()


def test_a_file_of_another_version_is_refused_and_left_alone(path):
    SqliteStore(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="schema version 99, but this release needs 2"):
        SqliteStore(path)


def test_a_second_tower_on_the_same_folder_is_refused(store, path):
    with pytest.raises(StoreError, match="another tower uses"):
        SqliteStore(path)


def change(store: SqliteStore, statement: str) -> None:
    store._thread.submit(lambda: store._db.execute(statement)).result()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("verdict", "{"),
        ("verdict", '{"job": "llama", "cause": "a cause of another release"}'),
        ("body", "{"),
        ("body", "[[[]]]"),
        ("body", "\0 not packed"),
        ("status", "a status of another release"),
    ],
)
def test_an_incident_of_another_release_is_kept_with_what_can_be_read(store, column, value):
    store.save_incident(an_incident(evidence=EVIDENCE)).result()
    store.save_incident(an_incident(id="01B", evidence=EVIDENCE)).result()
    table, key = ("evidence", "incident") if column == "body" else ("incidents", "id")
    body = value.encode() if value.startswith("\0") else pack(value.encode())
    stored = f"x'{body.hex()}'" if column == "body" else f"'{value}'"
    change(store, f"UPDATE {table} SET {column} = {stored} WHERE {key} = '01A'")
    odd, whole = store.recall().incidents
    assert (read_case(whole), whole.verdict) == (a_case(), an_incident().verdict)
    assert (odd.id, odd.job, odd.opened_at) == ("01A", whole.job, whole.opened_at)
    assert (read_case(odd) is None) == (column == "body")
    assert ("cannot be read" in odd.verdict.summary) == (column == "verdict")
    assert {one.id for one in store.incidents().result()} == {"01A", "01B"}
    assert store.incident("01A").result().id == "01A"


def test_an_update_of_an_incident_does_not_write_its_evidence_again(store, path):
    evidence = b'{"text": "%s"}' % os.urandom(5_000_000).hex().encode()
    store.save_incident(an_incident(evidence=evidence)).result()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    for second in range(10):
        store.save_incident(an_incident(updated_at=101.0 + second)).result()
    assert path.with_name("watchtower.db-wal").stat().st_size < 1_000_000
    assert store.incident("01A").result().evidence == evidence


def test_processes_that_cannot_be_read_are_nobody(store):
    store.save_rows([AttemptRow("llama", PastAttempt(number=3), 5.0)]).result()
    change(store, "UPDATE attempts SET processes = '[7]'")
    assert store.recall().attempts == {"llama": PastAttempt(number=3)}


def test_a_damaged_file_is_named_with_what_to_do(store):
    change(store, "DROP TABLE silences")
    with pytest.raises(StoreError, match=r"is damaged: .*; move it away"):
        store.recall()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot open the store"):
        SqliteStore(tmp_path / "file" / "watchtower.db")


def check_set_aside(path, store, content):
    """The damaged file is kept under another name, and the new one is used."""
    assert store.recall().incidents == ()
    assert store.set_aside.read_bytes()[: len(content)] == content
    assert re.fullmatch(r"watchtower\.db\.damaged-\d{8}T\d{6}Z", store.set_aside.name)
    store.save_incident(an_incident()).result()
    store.close()
    again = SqliteStore(path)
    assert again.set_aside is None
    assert [one.id for one in again.recall().incidents] == ["01A"]
    again.close()


def test_a_file_that_is_no_database_is_set_aside(tmp_path, caplog):
    path = tmp_path / "watchtower.db"
    content = b"not a database, but long enough to be looked at" * 100
    path.write_bytes(content)
    check_set_aside(path, SqliteStore(path), content)
    assert "is damaged: file is not a database; it was moved to" in caplog.text


def test_a_database_with_a_damaged_page_is_set_aside(path, caplog):
    store = SqliteStore(path)
    for number in range(50):
        store.save_incident(an_incident(id=f"{number}", evidence=EVIDENCE)).result()
    store.close()
    content = bytearray(path.read_bytes())
    for page in range(1, len(content) // 4096):  # the first page has the schema
        content[page * 4096 : (page + 1) * 4096] = b"\xee" * 4096
    path.write_bytes(content)
    damaged = SqliteStore(path)
    check_set_aside(path, damaged, b"SQLite format 3")
    assert "malformed" in caplog.text


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_files_are_open_to_their_owner_alone(path, umask):
    def modes():
        return {oct(item.stat().st_mode & 0o777) for item in path.parent.iterdir()}

    before = os.umask(umask)
    try:
        store = SqliteStore(path)
        store.save_incident(an_incident(evidence=EVIDENCE)).result()
        assert path.with_name("watchtower.db-wal").exists()
        assert (modes(), path.parent.stat().st_mode & 0o777) == ({"0o600"}, 0o700)
        store.close()
        for item in (path.parent, *path.parent.iterdir()):
            item.chmod(0o755)
        store = SqliteStore(path)
        assert (modes(), path.parent.stat().st_mode & 0o777) == ({"0o600"}, 0o700)
        store.close()
    finally:
        os.umask(before)


def test_a_folder_with_files_of_others_is_left_open(tmp_path):
    (tmp_path / "notes").write_text("")
    for item in (tmp_path, tmp_path / "notes"):
        item.chmod(0o755)
    SqliteStore(tmp_path / "watchtower.db").close()
    modes = {item.name: item.stat().st_mode & 0o777 for item in (tmp_path, *tmp_path.iterdir())}
    assert (modes["notes"], modes[tmp_path.name], modes["watchtower.db"]) == (0o755, 0o755, 0o600)


def test_a_folder_in_place_of_the_file_is_no_want_of_room(tmp_path):
    path = tmp_path / "watchtower.db"
    path.mkdir()
    with pytest.raises(StoreError, match="this user must have write permission"):
        SqliteStore(path)


def test_a_file_whose_tables_somebody_changed_is_to_be_moved_away(path):
    path.parent.mkdir()
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE incidents (id TEXT)")
    db.close()
    with pytest.raises(StoreError, match=r"no such column.*move it away"):
        SqliteStore(path)


def test_the_facts_of_a_job_stay_with_its_incident(tmp_path):
    path = tmp_path / "watchtower.db"
    store = SqliteStore(path)
    known = JobFacts(ranks=8, user="alice", checkpoint_step=1200)
    store.save_incident(an_incident(facts=known)).result()
    store.save_incident(an_incident(facts=replace(known, dumps_in=8))).result()
    assert store.incident(an_incident().id).result().facts == replace(known, dumps_in=8)
    store.close()


@pytest.mark.long
def test_the_file_does_not_grow_without_bound(tmp_path):
    """What lies in the log beside the file depends on time, so each wave ends with it written."""
    limits = {"dumps_mb": 2.0, "dumps_per_job_mb": 1.0, "evidence_mb": 0.05, "incidents": 20}
    file, sizes = tmp_path / "watchtower.db", []
    for wave in range(6):
        with contextlib.closing(SqliteStore(file, replace_unchecked(Retention(), limits))) as store:
            for number in range(60):
                ident = f"{wave}-{number:03}"
                store.save_dumps(f"j{number % 5}", a_large_batch(ident, 50_000), NOW)
                store.save_incident(closed(number + 60 * wave, evidence=EVIDENCE))
            store.prune(NOW).result()
            prune_all(store)
        sizes.append(file.stat().st_size)
    assert max(sizes[2:]) <= 1.2 * max(sizes[:2])
    assert sizes[-1] < 8 * MB
