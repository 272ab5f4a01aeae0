"""PostgreSQL goes away and comes back, is brought up to date by several towers, and refuses those
that are no owners any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.store.builders import a_batch, an_incident
from watchtower.incidents.incident import Ack
from watchtower.store import postgres
from watchtower.store.migrations import MIGRATIONS, schema_version
from watchtower.store.opening import open_store
from watchtower.store.postgres import FencedError, PostgresStore
from watchtower.store.protocol import StoreError

STEP = "ALTER TABLE pauses ADD COLUMN note TEXT NOT NULL DEFAULT '';"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(postgres, "AGAIN_S", 0.05)


@pytest.fixture
def space(url) -> str:
    return url.rpartition("%3D")[2]


def backends(server) -> list[int]:
    query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'watchtower'"
    return [pid for (pid,) in server.execute(query)]


def test_a_connection_that_is_killed_is_made_again_and_no_call_notices(make_store, server):
    store = make_store()
    store.save_incident(an_incident()).result(10)
    for _ in range(3):
        server.execute(f"SELECT pg_terminate_backend({backends(server)[0]})")
        assert store.incident("01A").result(10) == an_incident()
        server.execute(f"SELECT pg_terminate_backend({backends(server)[0]})")
        assert store.save_ack("01A", Ack(at=5.0, by="ada")).result(10)
        store.save_ack("01A", Ack(at=None, by="")).result(10)


def test_a_connection_that_is_killed_in_a_group_leaves_no_part_of_it(make_store, server):
    store, began, killed = make_store(), threading.Event(), threading.Event()

    def pause(db):
        began.set()
        killed.wait(10)
        db.execute("SELECT 1")

    store._thread.submit(lambda: time.sleep(0.05))
    futures = [store.save_dumps("llama", a_batch(f"b{number}"), 5.0) for number in range(3)]
    futures += [store.write(pause), store.save_dumps("llama", a_batch("b3"), 6.0)]
    assert began.wait(10)
    server.execute(f"SELECT pg_terminate_backend({backends(server)[0]})")
    killed.set()
    for future in futures:
        assert future.result(10) is None
    assert len(store.dumps("llama", 0.0).result(10)) == 4


def test_writes_wait_for_a_restart_of_the_server(make_store, server):
    store = make_store()
    server.stop()
    try:
        saving = store.save_incident(an_incident())
        time.sleep(0.3)
        assert not saving.done()
    finally:
        server.start()
    assert saving.result(20) is None
    assert store.incident("01A").result(10) == an_incident()


def test_after_a_while_writes_fail_with_the_reason_and_then_succeed(
    make_store, server, monkeypatch
):
    monkeypatch.setattr(postgres, "PATIENCE_S", 0.3)
    store = make_store()
    server.stop(signal.SIGQUIT)
    try:
        with pytest.raises(ConnectionError, match=r"cannot reach PostgreSQL \(127.0.0.1 \d+ postg"):
            store.save_incident(an_incident()).result(20)
        began = time.monotonic()
        waiting = [store.save_dumps("llama", a_batch(f"b{n}"), 5.0) for n in range(600)]
        assert {type(each.exception(20)) for each in waiting} == {ConnectionError}
        assert time.monotonic() - began < 10
    finally:
        server.start()
    time.sleep(postgres.AGAIN_S)
    assert store.save_incident(an_incident()).result(20) is None


def test_a_server_that_stands_still_delays_nobody_who_asks(make_store, server):
    store = make_store()
    server.execute("SELECT 1")
    for pid in backends(server):
        os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        saving = store.save_incident(an_incident())
        store.incidents()
        assert time.monotonic() - began < 1
        assert not saving.done()
    finally:
        for pid in server.children():
            os.kill(pid, signal.SIGCONT)
    assert saving.result(20) is None


def test_texts_that_postgres_cannot_hold_are_stored_without_their_nuls(make_store):
    store = make_store()
    store.save_incident(an_incident(job="a\0b")).result(10)
    assert store.incident("01A").result(10).job == "a�b"


def test_a_server_that_is_not_there_and_a_bad_address_are_named(monkeypatch):
    monkeypatch.setattr(postgres, "PATIENCE_S", 0.1)
    with pytest.raises(StoreError, match=r"cannot reach PostgreSQL \(127.0.0.1 1 wt\): .*refused"):
        PostgresStore("postgresql://tower@127.0.0.1:1/wt")
    with pytest.raises(StoreError, match="is not an address of PostgreSQL"):
        PostgresStore("postgresql://[")


def test_without_the_driver_its_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "watchtower.store.postgres", None)
    with pytest.raises(StoreError, match=r"pip install 'gpu-watchtower\[tower,postgres\]'"):
        open_store("postgresql://db/watchtower")


def test_a_tower_on_a_file_does_not_import_the_driver():
    code = "import sys, watchtower.app, watchtower.cli; sys.exit('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Migrations


def test_towers_that_start_at_once_bring_the_tables_up_to_date_one_after_the_other(url):
    def start(partition: int) -> str:
        store = PostgresStore(url, partition=partition)
        store.save_incident(an_incident(id=f"{partition}")).result(20)
        store.close()
        return "fine"

    with ThreadPoolExecutor(4) as towers:
        assert list(towers.map(start, range(4))) == ["fine"] * 4


def test_an_older_tower_goes_on_beside_a_newer_schema_and_is_refused_when_it_starts(
    make_store, url, monkeypatch
):
    older = make_store()
    with monkeypatch.context() as next_release:
        next_release.setitem(MIGRATIONS, schema_version() + 1, STEP)
        newer = PostgresStore(url, partition=1)
    older.save_incident(an_incident()).result(10)
    assert newer.incident("01A").result(10) == an_incident()
    newer.close()
    found, needed = schema_version() + 1, schema_version()
    with pytest.raises(StoreError, match=f"version {found}, but this release needs {needed}"):
        make_store(partition=2)


def test_a_step_that_fails_changes_nothing(make_store, monkeypatch, server, space):
    make_store().close()
    with monkeypatch.context() as next_release:
        next_release.setitem(MIGRATIONS, schema_version() + 1, f"{STEP} UPDATE absent SET a = 1;")
        with pytest.raises(StoreError, match='relation "absent" does not exist'):
            make_store()
    assert server.execute(f"SELECT version FROM {space}.schema_version") == [(schema_version(),)]
    make_store()


# Owners


def take_over(server, space: str) -> None:
    """End the lease of the owner, as time does."""
    server.execute(f"UPDATE {space}.leases SET until = 0")


def test_a_second_tower_waits_for_the_lease_and_is_refused_while_it_is_held(
    make_store, monkeypatch
):
    monkeypatch.setattr(postgres, "LEASE_S", 0.5)
    first, held = make_store(), threading.Event()

    def hold() -> None:
        while not held.wait(0.1):
            first.check().result(10)

    holding = threading.Thread(target=hold)
    holding.start()
    try:
        with pytest.raises(StoreError, match="another tower uses PostgreSQL"):
            make_store()
    finally:
        held.set()
        holding.join()
    first.close()
    began = time.monotonic()
    make_store()
    assert time.monotonic() - began < 5, "a tower that ends gives its lease up"


def test_of_two_stores_that_both_believe_to_own_a_partition_the_earlier_writes_nothing(
    make_store, server, space
):
    earlier = make_store()
    earlier.save_incident(an_incident()).result(10)
    take_over(server, space)
    later = make_store()
    later.save_incident(an_incident(id="02")).result(10)
    for call in (
        lambda: earlier.save_incident(an_incident(id="03")),
        lambda: earlier.save_dumps("llama", a_batch("b1"), 5.0),
        lambda: earlier.save_ack("02", Ack(at=5.0, by="ada")),
        lambda: earlier.fade_pauses(0.5),
        lambda: earlier.prune(1e12),
        earlier.check,
    ):
        with pytest.raises(FencedError, match="another tower took over"):
            call().result(10)
    assert [one.id for one in later.incidents().result(10)] == ["02", "01A"]
    assert later.incident("02").result(10).ack is None


def test_a_lease_that_is_over_but_taken_by_nobody_is_renewed_by_the_next_write(
    make_store, server, space
):
    store = make_store()
    take_over(server, space)
    store.save_incident(an_incident()).result(10)
    ((left,),) = server.execute(
        f"SELECT until - EXTRACT(EPOCH FROM clock_timestamp()) > 5 FROM {space}.leases"
    )
    assert left


def test_a_store_becomes_the_owner_before_a_transaction_or_after_it(make_store, server, space):
    earlier, began, goes_on = make_store(), threading.Event(), threading.Event()

    def pause(db):
        began.set()
        goes_on.wait(20)

    saving = [earlier.write(pause), earlier.save_incident(an_incident())]
    assert began.wait(10)
    with ThreadPoolExecutor(1) as other:
        server_time = other.submit(lambda: take_over(server, space))
        time.sleep(0.5)
        assert not server_time.done(), "the lease is locked until the commit"
        goes_on.set()
        server_time.result(20)
    assert [one.result(10) for one in saving] == [None, None]
    later = make_store()
    assert later.incident("01A").result(10) == an_incident(), "it sees all that was written before"
    with pytest.raises(FencedError):
        earlier.save_incident(an_incident(id="02")).result(10)


def test_a_tower_that_stands_still_in_a_transaction_gives_way_and_writes_nothing(
    url, server, space, monkeypatch
):
    monkeypatch.setattr(postgres, "SESSION", postgres.SESSION.replace("= '5s'", "= '300ms'"))
    earlier, began, goes_on = PostgresStore(url), threading.Event(), threading.Event()

    def pause(db):
        began.set()
        goes_on.wait(20)

    saving = [earlier.write(pause), earlier.save_incident(an_incident())]
    assert began.wait(10)
    time.sleep(0.1)
    take_over(server, space)
    later = PostgresStore(url)
    goes_on.set()
    assert {type(one.exception(10)) for one in saving} == {FencedError}
    assert later.incident("01A").result(10) is None
    later.close()
    earlier.close()


def test_the_address_has_no_effect_on_what_a_name_shows(url):
    store = PostgresStore(url, password="secret")
    assert "secret" not in store._name
    store.close()
    with psycopg.connect(url) as link:
        assert link.execute("SELECT count(*) FROM leases WHERE until = 0").fetchone() == (1,)
