"""A store, and again what it has kept. tests/system/store has the same for PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from watchtower.store.protocol import Store
from watchtower.store.sqlite import SqliteStore

OpenStore = Callable[..., Store]


@pytest.fixture
def make_store(tmp_path) -> Iterator[OpenStore]:
    """Opens the store of a tower, and again what it has kept."""
    opened: list[Store] = []

    def make(*values, inline: bool = False) -> Store:
        opened.append(SqliteStore(tmp_path / "watchtower.db", *values, inline=inline))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture(params=[False, True], ids=["thread", "inline"])
def open_store(request, make_store: OpenStore) -> OpenStore:
    """The same with a thread and without."""
    return partial(make_store, inline=request.param)
