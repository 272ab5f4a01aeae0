"""A story told to one real tower."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.core.detection.scenes import World
from tests.tower.simulator import Simulation

Story = Callable[[Simulation], Awaitable[None]]


@pytest.fixture
def tell(tmp_path: Path):
    """Run a story; what the tower started is ended afterwards."""

    def run(story: Story, world: World | None = None) -> None:
        async def whole() -> None:
            simulation = Simulation(tmp_path / "watchtower.db", world)
            try:
                await story(simulation)
            finally:
                await simulation.close()

        asyncio.run(whole())

    return run
