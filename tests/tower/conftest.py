"""Fixtures: `tell` runs a story, a timeline of reports to one real tower; `client` asks a tower."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.diagnosers import in_thread
from tests.jobs.scenes import World
from tests.shared_parts import share_parts
from tests.tower.simulator import Simulation
from tests.tower.watching import Watching, without_heartbeats
from watchtower.app import make_app
from watchtower.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.tower import tower as tower_module
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower

share_parts()

Story = Callable[[Simulation], Awaitable[None]]


@pytest.fixture
def tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs a story and then ends everything that the tower started.

    Dumps are judged at the next tick, because a timer in real time would depend on the disk.
    """
    monkeypatch.setattr(tower_module, "JUDGE_WITHIN_S", 3600)

    def run(story: Story, world: World | None = None) -> None:
        async def whole() -> None:
            simulation = Simulation(tmp_path / "watchtower.db", world)
            try:
                await story(simulation)
            finally:
                await simulation.close()

        asyncio.run(whole())

    return run


@pytest.fixture
def tell_no_heartbeat(tell):
    def run(story, **policy: float) -> None:
        async def whole(sim: Simulation) -> None:
            await story(sim, Watching(sim))

        tell(whole, without_heartbeats(**policy))

    return run


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """An empty store."""
    store = SqliteStore(tmp_path / "watchtower.db")
    yield store
    store.close()


@pytest.fixture
def tower(store: SqliteStore) -> Tower:
    """A tower with this store. Without `client` it does not tick."""
    return Tower(Policy(), store, store.recall(), Clock(), in_thread)


@pytest.fixture
def client(tower: Tower) -> Iterator[TestClient]:
    """Requests to that tower, without tokens."""
    with TestClient(make_app(tower)) as client:
        yield client
