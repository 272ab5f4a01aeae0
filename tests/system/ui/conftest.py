"""The browser that all tests of one process share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.ui.browser import running_chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with running_chromium() as browser:
        yield browser
