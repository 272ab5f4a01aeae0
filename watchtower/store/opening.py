"""Opens the store that an address names: a file of SQLite, or a database of PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from watchtower.store.protocol import StoreError
from watchtower.store.retention import Retention
from watchtower.store.sql_store import SqlStore
from watchtower.store.sqlite import SqliteStore

POSTGRES = ("postgresql://", "postgres://")

NO_DRIVER = (
    "PostgreSQL needs the package psycopg ({}): install it with `pip install "
    "'gpu-watchtower[tower,postgres]'`"
)


def open_store(address: str, keep: Retention | None = None, password: str = "") -> SqlStore:
    """Open the store at a URL or in a file. Raises StoreError.

    PostgreSQL's driver is imported only for a URL.
    """
    if not address.startswith(POSTGRES):
        return SqliteStore(Path(address), keep)
    try:
        from watchtower.store.postgres import PostgresStore  # noqa: PLC0415
    except ImportError as error:
        raise StoreError(NO_DRIVER.format(error)) from None
    return PostgresStore(address, keep, password=password)
