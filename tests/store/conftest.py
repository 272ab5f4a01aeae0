"""A store, and again what it has kept. tests/system/store has the same for PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from watchtower.store.protocol import Store
from watchtower.store.sqlite import SqliteStore

OpenStore = Callable[..., Store]


@pytest.fixture(params=[False, True], ids=["thread", "inline"])
def open_store(request, tmp_path) -> Iterator[OpenStore]:
    """Opens the store of a tower, and again what it has kept."""
    opened: list[Store] = []

    def open_(**limits) -> Store:
        path = tmp_path / "watchtower.db"
        opened.append(SqliteStore(path, inline=request.param, **limits))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()
