"""Tests of this folder make many applications. `server` is one with short deadlines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.servers import SOON_S, Server
from tests.shared_parts import share_parts
from watchtower.api import connections, intake

share_parts()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for module, name in (
        (connections, "HEAD_S"),
        (connections, "LINGER_S"),
        (intake, "BODY_S"),
    ):
        monkeypatch.setattr(module, name, SOON_S)
    monkeypatch.setattr(connections, "REQUEST_S", 3 * SOON_S)
    made = Server(tmp_path)
    yield made
    made.close()
