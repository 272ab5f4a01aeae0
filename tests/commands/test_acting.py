"""`watchtower ack --outage` and `watchtower feedback`: what they send, and what they print."""

from __future__ import annotations

import json
from typing import Any

import pytest

from watchtower.cli import make_parser
from watchtower.commands.acting import ack_outage, judge
from watchtower.commands.client import ClientError, NotFoundError

AT = "2026-11-22T02:16:27Z"


class Client:
    """A tower with two outages, and with one incident that people judge."""

    def __init__(self, before: dict[str, Any] | None = None) -> None:
        self.acked: list[tuple[str, str, str]] = []
        self.before = before
        self.given: dict[str, Any] = {}

    def list_outages(self) -> dict[str, Any]:
        incidents = [
            {"id": "01A", "job": "a", "closed_at": None, "acknowledged": False},
            {"id": "01B", "job": "b", "closed_at": AT, "acknowledged": False},
            {"id": "01C", "job": "c", "closed_at": None, "acknowledged": True},
            {"id": "01D", "job": "d\x1b[31m", "closed_at": None},
        ]
        return {"items": [{"id": "01A", "incidents": incidents}, {"id": "02A", "incidents": []}]}

    def ack(self, incident: str, by: str, note: str) -> dict[str, Any]:
        self.acked.append((incident, by, note))
        return {"at": AT, "by": by, "note": note}

    def incident(self, text: str) -> dict[str, Any]:
        return {"id": f"{text.upper()}23", "feedback": self.before}

    def judge(self, incident: str, **given: Any) -> dict[str, Any]:
        self.given = {"incident": incident, **given}
        return {"at": AT, **given}


def acknowledge(client: Client, outage: str, *words: str) -> int:
    words = ("ack", "--outage", outage, "--by", "ann", "--note", "NFS", *words)
    return ack_outage(client, make_parser().parse_args(words))  # type: ignore[arg-type]


def answer(client: Client, *words: str) -> int:
    args = make_parser().parse_args(["feedback", *words])
    return judge(client, args)  # type: ignore[arg-type]


def test_the_open_incidents_without_an_ack_are_acknowledged(capsys: pytest.CaptureFixture[str]):
    client = Client()
    assert acknowledge(client, "01a") == 0
    assert client.acked == [("01A", "ann", "NFS"), ("01D", "ann", "NFS")]
    printed = capsys.readouterr().out
    assert printed.startswith("2 of 4 incidents of outage 01A are now acknowledged: a, d")
    assert "\x1b" not in printed
    assert acknowledge(client, "01A", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["items"]) == 2


def test_an_outage_that_is_unknown_or_not_clear_is_refused():
    client = Client()
    with pytest.raises(NotFoundError, match="`watchtower outages` lists them"):
        acknowledge(client, "03")
    with pytest.raises(ClientError, match="several outages begin with '0'"):
        acknowledge(client, "0")
    assert client.acked == []


def test_a_right_verdict_is_confirmed(capsys: pytest.CaptureFixture[str]):
    client = Client()
    assert answer(client, "01a", "right", "--by", "bob") == 0
    assert client.given == {
        "incident": "01A23",
        "right": True,
        "rank": None,
        "cause": None,
        "by": "bob",
        "note": "",
    }
    assert capsys.readouterr().out.startswith("the verdict on 01A23 is judged right ")


def test_a_wrong_verdict_is_corrected_and_the_answer_before_is_printed(
    capsys: pytest.CaptureFixture[str],
):
    before = {"at": AT, "right": True, "rank": None, "cause": None, "by": "ann", "note": ""}
    client = Client(before)
    words = ("--rank", "40", "--cause", "network_wait", "--by", "bob", "--note", "a\x1b[31m cable")
    assert answer(client, "01a", "wrong", *words) == 0
    assert (client.given["right"], client.given["rank"]) == (False, 40)
    printed = capsys.readouterr().out
    assert "by bob, correct is rank 40, network_wait: a" in printed
    assert "; before: judged right" in printed
    assert "\x1b" not in printed


def test_the_person_is_the_user_and_the_answer_is_json_on_demand(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LOGNAME", "carol")
    client = Client()
    assert answer(client, "01a", "right", "--json") == 0
    assert json.loads(capsys.readouterr().out)["by"] == client.given["by"] != ""


@pytest.mark.parametrize(
    "words",
    [
        ("01a",),
        ("01a", "maybe"),
        ("01a", "wrong", "--cause", "moon"),
        ("01a", "wrong", "--rank", "x"),
    ],
)
def test_an_answer_that_the_tower_would_not_understand_is_refused(words):
    with pytest.raises(SystemExit) as error:
        answer(Client(), *words)
    assert error.value.code == 2
