"""The receiver of alerts that tests share, and short waits of the notifier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.alerts.notifying import tell_story
from tests.alerts.receivers import Receiver, receiving
from watchtower.alerts import notifier, outbox

SHORT_S = 0.3


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


@pytest.fixture
def tell(tmp_path: Path, receiver: Receiver) -> Callable[..., None]:
    """Return a function that runs a story of a notifier whose destination is the receiver."""
    return partial(tell_story, path=tmp_path, receiver=receiver)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GATHER_S", "REGATHER_S", "CHECK_S"):
        monkeypatch.setattr(notifier, name, SHORT_S)
    # A busy disk is no full one: it writes before anything is sent.
    monkeypatch.setattr(outbox, "STORE_S", 30.0)
