"""The browser that the tests of one file share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.ui.browser import running_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Playwright keeps an event loop running in this process, which other tests cannot have."""
    with running_chromium() as browser:
        yield browser
