"""The fixture `tell`: runs a story, which is a timeline of reports to one real tower."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.core.detection.scenes import World
from tests.shared_schemas import share_schemas
from tests.tower.simulator import Simulation
from watchtower.tower import tower

share_schemas()

Story = Callable[[Simulation], Awaitable[None]]


@pytest.fixture
def tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs a story and then ends everything that the tower started.

    Dumps are judged at the next tick, because a timer in real time would depend on the disk.
    """
    monkeypatch.setattr(tower, "JUDGE_WITHIN_S", 3600)

    def run(story: Story, world: World | None = None) -> None:
        async def whole() -> None:
            simulation = Simulation(tmp_path / "watchtower.db", world)
            try:
                await story(simulation)
            finally:
                await simulation.close()

        asyncio.run(whole())

    return run
