"""`watchtower ack --outage`: which incidents it acknowledges."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest

from watchtower.commands.acting import ack_outage
from watchtower.commands.client import ClientError, NotFoundError

OPEN, CLOSED = None, "2026-11-22T02:16:27Z"


class Client:
    """A tower with two outages."""

    def __init__(self) -> None:
        self.acked: list[tuple[str, str, str]] = []

    def list_outages(self) -> dict[str, Any]:
        incidents = [
            {"id": "01A", "job": "a", "closed_at": OPEN, "acknowledged": False},
            {"id": "01B", "job": "b", "closed_at": CLOSED, "acknowledged": False},
            {"id": "01C", "job": "c", "closed_at": OPEN, "acknowledged": True},
            {"id": "01D", "job": "d\x1b[31m", "closed_at": OPEN},
        ]
        return {"items": [{"id": "01A", "incidents": incidents}, {"id": "02A", "incidents": []}]}

    def ack(self, incident: str, by: str, note: str) -> dict[str, Any]:
        self.acked.append((incident, by, note))
        return {"at": CLOSED, "by": by, "note": note}


def run(client: Client, outage: str, *, as_json: bool = False) -> int:
    args = argparse.Namespace(outage=outage, by="ann", note="NFS", json=as_json)
    return ack_outage(client, args)  # type: ignore[arg-type]


def test_the_open_incidents_without_an_ack_are_acknowledged(capsys: pytest.CaptureFixture[str]):
    client = Client()
    assert run(client, "01a") == 0
    assert client.acked == [("01A", "ann", "NFS"), ("01D", "ann", "NFS")]
    printed = capsys.readouterr().out
    assert printed.startswith("2 of 4 incidents of outage 01A are now acknowledged: a, d")
    assert "\x1b" not in printed
    assert run(client, "01A", as_json=True) == 0
    assert len(json.loads(capsys.readouterr().out)["items"]) == 2


def test_an_outage_that_is_unknown_or_not_clear_is_refused():
    client = Client()
    with pytest.raises(NotFoundError, match="`watchtower outages` lists them"):
        run(client, "03")
    with pytest.raises(ClientError, match="several outages begin with '0'"):
        run(client, "0")
    assert client.acked == []
