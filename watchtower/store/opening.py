"""Opens the store that an address names: a file of SQLite, or a database of PostgreSQL.

PostgreSQL's driver is imported only for a URL.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from watchtower.store.protocol import StoreError
from watchtower.store.retention import Retention
from watchtower.store.sql_store import SqlStore
from watchtower.store.sqlite import SqliteStore

NO_DRIVER = (
    "PostgreSQL needs the package psycopg ({}): install it with `pip install "
    "'gpu-watchtower[tower,postgres]'`"
)


def is_postgres(address: str) -> bool:
    """Return whether an address is a URL of PostgreSQL, as opposed to the path of a file."""
    return address.startswith(("postgresql://", "postgres://"))


def find_postgres() -> ModuleType:
    """Return the module of PostgreSQL. Raises StoreError if its driver is missing."""
    try:
        return import_module("watchtower.store.postgres")
    except ImportError as error:
        raise StoreError(NO_DRIVER.format(error)) from None


def open_store(
    address: str, keep: Retention | None = None, password: str = "", *, standby: bool = False
) -> SqlStore:
    """Open the store at a URL or in a file. Raises StoreError.

    `standby`: a store that another tower uses is opened, and `claim` waits for its lease.
    """
    if is_postgres(address):
        store: SqlStore = find_postgres().PostgresStore(
            address, keep, password=password, standby=standby
        )
        return store
    return SqliteStore(Path(address), keep)
