"""A store is copied to another database, checked, and saved while the tower writes."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import threading
from itertools import count

import pytest

from tests.store.builders import EVIDENCE, a_batch, an_incident
from tests.store.test_incident_filter import naming
from watchtower.cli import main
from watchtower.incidents.incident import Ack, Feedback, Silence, SilenceKind
from watchtower.jobs.attempt import PastAttempt
from watchtower.jobs.pace import Pause
from watchtower.store import copying
from watchtower.store.migrations import MIGRATIONS
from watchtower.store.sqlite import SqliteStore
from watchtower.store.values import AlertRow, AttemptRow, PauseRow, SeriesRow
from watchtower.wire.verdict import Cause


def fill(store) -> None:
    """Save something in each table."""
    for number in range(40):
        ident = f"{number:02}"
        store.save_incident(an_incident(id=ident, evidence=EVIDENCE, summary=b"{}", opened_at=5.5))
        store.save_dumps("llama", a_batch(f"b{ident}"), float(number))
    store.save_incident(naming(("gpu-1", "data.py:88"), id="00"))
    store.save_ack("01", Ack(at=5.0, by="ada", note="ü\u2028"))
    store.save_series(
        SeriesRow(incident="01", node="n", launch="l", sharer="ann", taken_at=1.0, body=b"{}")
    )
    row = AlertRow(
        destination="slack",
        incident="01",
        alert="{}",
        version=2,
        delivered=1,
        receipt="r1",
        updated_at=9.0,
    )
    store.save_alert(row)
    pause = PauseRow("llama", Pause(phase="", frame_class="user", length_s=20.0))
    store.save_rows([AttemptRow("llama", PastAttempt(number=3), 5.0), pause])
    store.save_silence(Silence(id="S", kind=SilenceKind.NODE, name="n", since=1.0, until=1e12))
    store.save_feedback(
        Feedback(
            incident="01",
            job="llama",
            at=5.0,
            right=True,
            verdict_cause=Cause.UNKNOWN,
            confidence=0.4,
        )
    ).result(20)


def test_every_table_is_copied():
    tables = {line.split()[5] for line in MIGRATIONS[1].splitlines() if "CREATE TABLE" in line}
    assert set(copying.KEYS) == tables - {"leases"}


@pytest.fixture
def file(tmp_path) -> str:
    path = tmp_path / "watchtower.db"
    store = SqliteStore(path)
    fill(store)
    store.close()
    return str(path)


def test_a_copy_to_postgres_and_back_is_the_same(file, url, make_store, tmp_path, capsys):
    back = str(tmp_path / "back" / "watchtower.db")
    assert main(["store", "copy", file, url]) == 0
    assert main(["store", "copy", url, back]) == 0
    assert "incidents          40 rows" in capsys.readouterr().out
    for address in (file, url, back):
        assert main(["store", "check", address]) == 0
    for table, key in copying.KEYS.items():
        query, found = f"SELECT * FROM {table} ORDER BY {key}", []
        for path in (file, back):
            with contextlib.closing(sqlite3.connect(path)) as db:
                found.append(db.execute(query).fetchall())
        assert found[0], table
        assert found[0] == found[1], table
    store, kept = make_store(), SqliteStore(tmp_path / "watchtower.db")
    assert store.recall() == kept.recall()
    kept.close()


def test_a_copy_that_was_interrupted_is_begun_again(file, url, monkeypatch, make_store):
    pages, page = count(), copying._page

    def fail(*values, **names):
        if next(pages) == 4:
            raise KeyboardInterrupt
        return page(*values, **names)

    with monkeypatch.context() as interrupted:
        interrupted.setattr(copying, "_page", fail)
        assert main(["store", "copy", file, url]) == 130
    assert main(["store", "copy", file, url]) == 0
    store = make_store()
    assert len(store.dumps("llama", 0.0).result(10)) == 40
    assert len(store.incidents().result(10)) == 40


def test_a_body_that_cannot_be_read_is_named(file, capsys):
    with contextlib.closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE dumps SET batch = x'00' WHERE id = 'b07'")
    assert main(["store", "check", file]) == 1
    assert "dumps              40 rows, 1 cannot be read\n  b07:" in capsys.readouterr().out


def test_a_file_that_is_damaged_or_missing_stays_as_it_is(file, tmp_path, capsys):
    content = b"not a database, but long enough to be read as one" * 100
    damaged = tmp_path / "other.db"
    damaged.write_bytes(content)
    for path in (damaged, tmp_path / "none.db"):
        assert main(["store", "check", str(path)]) != 0
        assert f"cannot read {path}" in capsys.readouterr().err
    assert damaged.read_bytes() == content


@pytest.fixture
def writing():
    """Lets a store write until it is stopped; then says how many dumps it had acknowledged."""

    @contextlib.contextmanager
    def write(store):
        done, acknowledged = threading.Event(), []

        def go_on():
            for number in count():
                if done.is_set():
                    return
                store.save_dumps("llama", a_batch(f"w{number:06}"), 100.0 + number).result(20)
                acknowledged.append(number)

        thread = threading.Thread(target=go_on)
        thread.start()
        while not acknowledged:
            done.wait(0.01)
        try:
            yield acknowledged
        finally:
            done.set()
            thread.join(30)

    return write


def test_a_backup_of_the_file_while_the_tower_writes(tmp_path, writing):
    store, saved = SqliteStore(tmp_path / "watchtower.db"), tmp_path / "saved.db"
    fill(store)
    with writing(store) as acknowledged:
        before = len(acknowledged)
        with contextlib.closing(sqlite3.connect(tmp_path / "watchtower.db")) as db:
            db.execute("VACUUM INTO ?", (str(saved),))
        assert main(["store", "check", str(saved)]) == 0
    store.close()
    restored = SqliteStore(saved)
    assert len(restored.incidents().result(20)) == 40
    with contextlib.closing(sqlite3.connect(saved)) as db:
        assert db.execute("SELECT count(*) FROM dumps").fetchone()[0] >= 40 + before
    restored.close()


def test_pg_dump_while_the_tower_writes(server, make_store, url, writing, tmp_path):
    store, space = make_store(), url.rpartition("%3D")[2]
    fill(store)
    programs, saved = server.programs, tmp_path / "saved.dump"
    address = server.url("postgres")
    with writing(store) as acknowledged:
        before = len(acknowledged)
        with saved.open("wb") as out:
            command = [programs / "pg_dump", "-Fc", "-n", space, address]
            subprocess.run(command, stdout=out, check=True)
    store.close()
    server.execute(f"DROP SCHEMA {space} CASCADE")
    command = [programs / "pg_restore", "-d", address, saved]
    subprocess.run(command, check=True, env={**os.environ, "LC_ALL": "C"})
    assert main(["store", "check", url]) == 0
    ((dumps,),) = server.execute(f"SELECT count(*) FROM {space}.dumps")
    assert dumps >= 40 + before
    server.execute(f"UPDATE {space}.leases SET until = 0")
    assert len(make_store().incidents().result(20)) == 40
