"""Fixtures for tests of the agent that stay in process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.agent_scene import RecordingTower
from tests.agent.dumpers.record_listeners import listen, short_deadline  # noqa: F401 - fixtures


@pytest.fixture
def tower() -> Iterator[RecordingTower]:
    """A tower that records."""
    recording = RecordingTower()
    yield recording
    recording.close()
