"""The receiver of alerts that tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.alerts.receivers import Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one
