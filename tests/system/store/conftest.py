"""A PostgreSQL server of its own for each process of tests, and a database for each test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.store.conftest import OpenStore
from tests.system.store.server import PostgresServer, find_programs
from watchtower.store.postgres import PostgresStore

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


@pytest.fixture(params=[False, True], ids=["thread", "inline"])
def open_store(request, url: str) -> Iterator[OpenStore]:
    opened: list[PostgresStore] = []

    def open_(**limits) -> PostgresStore:
        opened.append(PostgresStore(url, inline=request.param, **limits))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()
