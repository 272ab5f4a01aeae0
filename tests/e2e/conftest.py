"""Starts the drills of a run as soon as it is known which they are."""

from __future__ import annotations

import pytest

from tests.e2e.side_by_side import STDLIB, TORCH, names_in


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin with the drills, which mostly wait, before the first test of any folder."""
    if not session.config.option.collectonly:
        STDLIB.start(names_in(session.items, "tests.e2e.test_drills"))


def pytest_sessionfinish() -> None:
    """Begin no further drill when a run is cut short."""
    STDLIB.stop()
    TORCH.stop()
