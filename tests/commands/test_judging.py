"""`watchtower feedback`: what it sends, and what it prints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from watchtower.cli import make_parser
from watchtower.commands.acting import judge

AT = "2026-11-22T02:16:27Z"


class Client:
    """A tower with one incident."""

    def __init__(self, before: dict[str, Any] | None = None) -> None:
        self.before = before
        self.given: dict[str, Any] = {}

    def incident(self, text: str) -> dict[str, Any]:
        return {"id": f"{text.upper()}23", "feedback": self.before}

    def judge(self, incident: str, **given: Any) -> dict[str, Any]:
        self.given = {"incident": incident, **given}
        return {"at": AT, **given}


def run(client: Client, *words: str) -> int:
    args = make_parser().parse_args(["feedback", *words])
    return judge(client, args)  # type: ignore[arg-type]


def test_a_right_verdict_is_confirmed(capsys: pytest.CaptureFixture[str]):
    client = Client()
    assert run(client, "01a", "right", "--by", "bob") == 0
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
    assert run(client, "01a", "wrong", *words) == 0
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
    assert run(client, "01a", "right", "--json") == 0
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
        run(Client(), *words)
    assert error.value.code == 2
