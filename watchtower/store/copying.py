"""Copies one store into another, and checks that all of a store can be read."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from watchtower.store.database import Database, unpack
from watchtower.store.opening import find_postgres, is_postgres
from watchtower.store.protocol import StoreError
from watchtower.store.sql_store import SqlStore

KEYS = {
    "incidents": "id",
    "suspects": "incident, node, place",
    "evidence": "incident",
    "summaries": "incident",
    "series": "incident, node, launch",
    "feedback": "incident",
    "deliveries": "incident, destination",
    "alerts": "destination, incident",
    "dumps": "id",
    "attempts": "job",
    "pauses": "job, phase, frame_class",
    "silences": "kind, name",
}
"""The primary key of each table. Leases are of one database only."""

BODIES = {"evidence": "body", "summaries": "body", "series": "body", "dumps": "batch"}

ROWS, BODY_ROWS = 1000, 16
"""Rows in one page and transaction, and rows with bodies, of which one may have 4 MB."""


def copy(source: SqlStore, target: SqlStore) -> Iterator[tuple[str, int]]:
    """Copy what the target does not have. Yield each table with its number of rows.

    A copy that was interrupted is begun again: rows that are there are not written again.
    """
    for table, key in KEYS.items():
        number = 0
        for rows in _pages(source, table, key):
            target.write(partial(_add, table=table, key=key, rows=rows)).result()
            number += len(rows)
        yield table, number


def _add(db: Database, table: str, key: str, rows: list[tuple[Any, ...]]) -> None:
    values = ", ".join("?" * len(rows[0]))
    db.executemany(f"INSERT INTO {table} VALUES ({values}) ON CONFLICT ({key}) DO NOTHING", rows)


def _pages(source: SqlStore, table: str, key: str) -> Iterator[list[tuple[Any, ...]]]:
    """Yield all rows of a table, in the order of its key."""
    last, width = tuple[object, ...](), len(key.split(", "))
    while rows := source.read(partial(_page, table=table, key=key, last=last)).result():
        last = rows[-1][-width:]
        yield [row[:-width] for row in rows]


def _page(db: Database, table: str, key: str, last: tuple[object, ...]) -> list[tuple[Any, ...]]:
    """Return the next rows with their keys behind them."""
    after = f"WHERE ({key}) > ({', '.join('?' * len(last))})" if last else ""
    limit = BODY_ROWS if table in BODIES else ROWS
    found = db.execute(
        f"SELECT *, {key} FROM {table} {after} ORDER BY {key} LIMIT ?", (*last, limit)
    )
    return found.fetchall()


def check(db: Database) -> Iterator[tuple[str, int, list[str]]]:
    """Read all rows. Yield each table with its number of rows, and what cannot be read."""
    for table, key in KEYS.items():
        number, bad, last = 0, list[str](), tuple[object, ...]()
        width = len(key.split(", "))
        while rows := _page(db, table, key, last):
            number, last = number + len(rows), rows[-1][-width:]
            for row in rows if table in BODIES else ():
                body = next(value for value in row if isinstance(value, bytes))
                try:
                    unpack(body)
                except ValueError as error:
                    bad.append(f"{' '.join(map(str, row[-width:]))}: {error}")
        yield table, number, bad


@contextlib.contextmanager
def open_for_reading(address: str, password: str = "") -> Iterator[Database]:
    """Open a store that a tower may be using, without a change of it. Raises StoreError."""
    if is_postgres(address):
        with contextlib.closing(find_postgres().open_for_reading(address, password)) as db:
            yield db
        return
    uri = f"{Path(address).absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as file:
            found = file.execute("PRAGMA integrity_check").fetchone()[0]
            if found != "ok":
                raise StoreError(f"{address} is damaged: {found}")
            yield file
    except sqlite3.Error as error:
        raise StoreError(f"cannot read {address}: {error}") from error
