"""Writes in one transaction: each succeeds or fails by itself, and waits for the commit."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator

import pytest

from watchtower.service.calls import DaemonExecutor
from watchtower.store import grouped_writes
from watchtower.store.grouped_writes import (
    COMMITS,
    COMMITS_PER_S,
    MAX_GROUP,
    MAX_ROWS,
    GroupedWrites,
    Insert,
)


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    with db:
        db.execute("BEGIN")
        yield db


class Writer:
    """A database in memory, whose transactions are counted."""

    def __init__(self) -> None:
        self.thread = DaemonExecutor("test")
        self.db = self.thread.submit(self.connect).result()
        self.commits: list[int] = []
        self.fails = False
        self.writes = GroupedWrites(self.thread, self.transaction)
        self.thread.submit(lambda: self.db.execute("CREATE TABLE t (n INTEGER UNIQUE)")).result()

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(":memory:", check_same_thread=False)

    def stop(self) -> bool:
        """Stop the thread, then close the database; returns whether it stopped in time."""
        is_stopped = self.thread.stop(10)
        self.db.close()
        return is_stopped

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        if self.fails:
            raise OSError("it was removed")
        self.commits.append(sum(map(len, self.writes._groups)))
        with transaction(self.db) as db:
            yield db

    def insert(self, number: int):
        return self.writes.add(
            lambda db: db.execute("INSERT INTO t VALUES (?)", (number,)).rowcount
        )

    def numbers(self) -> list[int]:
        rows = self.thread.submit(lambda: self.db.execute("SELECT n FROM t").fetchall())
        return [number for (number,) in rows.result()]


@pytest.fixture
def writer(monkeypatch):
    monkeypatch.setattr(grouped_writes, "COMMITS", COMMITS)  # in other tests no write waits
    writer = Writer()
    yield writer
    assert writer.stop()


def test_many_commits_in_a_row_are_gathered(writer):
    began, futures = time.monotonic(), []
    for number in range(300):
        futures.append(writer.insert(number))
        time.sleep(0.001)
    assert [future.result(10) for future in futures] == [1] * 300
    took_s = time.monotonic() - began
    assert len(writer.commits) <= COMMITS + took_s * COMMITS_PER_S + 1
    assert writer.numbers() == list(range(300))


def held(writer: Writer) -> threading.Event:
    """Keep the writer thread busy until the event is set."""
    gate = threading.Event()
    writer.thread.submit(lambda: gate.wait(30))
    return gate


def test_what_is_asked_for_meanwhile_goes_into_one_transaction_in_order(writer):
    gate = held(writer)
    futures = [writer.insert(number) for number in range(100)]
    gate.set()
    assert [future.result(10) for future in futures] == [1] * 100
    assert len(writer.commits) == 1
    assert writer.numbers() == list(range(100))


def test_one_that_fails_fails_alone_and_leaves_nothing(writer):
    gate = held(writer)

    def half(db):
        db.execute("INSERT INTO t VALUES (50)")
        raise ZeroDivisionError

    first, doubled = writer.insert(1), writer.insert(1)
    broken, last = writer.writes.add(half), writer.insert(2)
    gate.set()
    assert (first.result(10), last.result(10)) == (1, 1)
    assert isinstance(doubled.exception(10), sqlite3.IntegrityError)
    assert isinstance(broken.exception(10), ZeroDivisionError)
    assert writer.numbers() == [1, 2]


def test_if_the_file_is_gone_all_of_the_group_are_told(writer):
    gate = held(writer)
    futures = [writer.insert(number) for number in range(5)]
    writer.fails = True
    gate.set()
    assert {type(future.exception(10)) for future in futures} == {OSError}
    writer.fails = False
    assert writer.insert(9).result(10) == 1


def test_a_group_is_bounded_and_reads_come_between(writer, monkeypatch):
    monkeypatch.setattr(grouped_writes, "MAX_GROUP", 10)
    gate = held(writer)
    futures = [writer.insert(number) for number in range(10)]
    seen = writer.thread.submit(lambda: writer.db.execute("SELECT count(*) FROM t").fetchone()[0])
    futures += [writer.insert(number) for number in range(10, 25)]
    gate.set()
    assert seen.result(10) == 10
    assert [future.result(10) for future in futures] == [1] * 25
    assert len(writer.commits) == 3


def test_a_write_is_there_for_a_read_asked_for_after_it(writer):
    for number in range(50):
        writer.insert(number)
        assert writer.numbers()[-1] == number


def test_a_stopped_writer_refuses():
    writer = Writer()
    assert writer.stop()
    with pytest.raises(RuntimeError):
        writer.insert(1)


def a_row(number: int | None) -> Insert:
    return Insert("INSERT INTO t (n)", (number,))


def test_rows_of_one_table_are_one_statement(writer):
    statements = []
    writer.thread.submit(lambda: writer.db.set_trace_callback(statements.append)).result()
    gate = held(writer)
    futures = [writer.writes.insert(a_row(number)) for number in range(2 * MAX_ROWS)]
    futures += [writer.insert(1000)]
    gate.set()
    assert [future.result(10) for future in futures] == [None] * (2 * MAX_ROWS) + [1]
    assert writer.numbers() == [*range(2 * MAX_ROWS), 1000]
    assert sum(each.startswith("INSERT") for each in statements) == 3


def test_a_row_that_cannot_be_inserted_is_the_only_one_that_fails(writer):
    gate = held(writer)
    futures = [writer.writes.insert(a_row(number)) for number in (1, 2, 1, 3)]
    gate.set()
    assert futures[3].result(10) is None
    assert [future.exception(10) is None for future in futures] == [True, True, False, True]
    assert writer.numbers() == [1, 2, 3]


def test_what_waits_when_the_thread_is_stopped_is_written(writer):
    gate = held(writer)
    futures = [writer.insert(number) for number in range(3 * MAX_GROUP)]
    threading.Timer(0.05, gate.set).start()
    assert writer.thread.stop(10)
    assert [future.result(0) for future in futures] == [1] * (3 * MAX_GROUP)


def test_a_read_sees_all_writes_that_were_asked_for_before_it(writer):
    gate = held(writer)
    for number in range(3 * MAX_GROUP):
        writer.insert(number)
    count = writer.thread.submit(lambda: writer.db.execute("SELECT COUNT(*) FROM t").fetchone())
    gate.set()
    assert count.result(10) == (3 * MAX_GROUP,)


def test_nobody_sees_a_part_of_a_group(tmp_path):
    path, thread = tmp_path / "file.db", DaemonExecutor("test")
    db = thread.submit(lambda: sqlite3.connect(path)).result()
    thread.submit(lambda: db.execute("CREATE TABLE t (n)")).result()
    writes, gate, seen = GroupedWrites(thread, lambda: transaction(db)), threading.Event(), []
    thread.submit(lambda: gate.wait(30))

    def look(_: sqlite3.Connection) -> None:
        with contextlib.closing(sqlite3.connect(path)) as other:
            seen.append(other.execute("SELECT COUNT(*) FROM t").fetchone()[0])

    futures = [writes.add(lambda db: db.execute("INSERT INTO t VALUES (1)")), writes.add(look)]
    gate.set()
    for future in futures:
        future.result(10)
    assert seen == [0]
    thread.submit(db.close)
    assert thread.stop(10)
