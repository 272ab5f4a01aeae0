"""A PostgreSQL server of its own for each process of tests, and an empty store for each test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.store.conftest import OpenStore, open_store
from tests.system.store.server import PostgresServer, find_programs
from watchtower.store.postgres import PostgresStore

__all__ = ["open_store"]

_NUMBERS = count()


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    if find_programs() is None:
        pytest.skip("needs PostgreSQL: apt install postgresql")
    server = PostgresServer()
    server.start()
    yield server
    server.close()


@pytest.fixture
def url(server: PostgresServer) -> str:
    """The address of an empty store."""
    return server.make_space(f"test_{next(_NUMBERS)}")


@pytest.fixture
def make_store(url: str) -> Iterator[OpenStore]:
    opened: list[PostgresStore] = []

    def make(*values, **options) -> PostgresStore:
        opened.append(PostgresStore(url, *values, **options))
        return opened[-1]

    yield make
    for store in opened:
        store.close()
