"""`watchtower drill --notify DEST`: the destination gets a marked alert and its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.alerts.receivers import serving
from watchtower.cli import main

FAST = (Path(__file__).parents[1] / "e2e" / "fast.toml").read_text("utf-8")


def config(tmp_path: Path, alerts: str) -> str:
    path = tmp_path / "drill.toml"
    path.write_text(f"{FAST}\n[alerts]\n{alerts}\n")
    return str(path)


def test_a_destination_gets_the_alert_of_a_drill_and_its_end(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WATCHTOWER_PAGERDUTY_KEY", "0123456789abcdef")
    with serving() as api:
        Path("hook").write_text(f"{api.url}/hook")
        settings = 'webhook_url_file = "hook"\nalertmanager_url = "http://127.0.0.1:9"'
        words = ["sigstop", "--ranks", "2", "--nodes", "1", "--backend", "stdlib"]
        words += ["--notify", "webhook", "--config", config(tmp_path, settings)]
        assert main(["drill", *words]) == 0, capsys.readouterr()
        bodies = api.bodies
    alerts = [alert for body in bodies for alert in body["alerts"]]
    assert {alert["labels"]["alertname"] for alert in alerts} == {"WatchtowerDrill"}
    assert {alert["labels"]["severity"] for alert in alerts} == {"info"}
    assert all(alert["annotations"]["summary"].startswith("[DRILL] [") for alert in alerts)
    assert alerts[0]["status"] == "firing"
    assert alerts[-1]["status"] == "resolved"
    out = capsys.readouterr().out
    assert "the alert was sent to webhook, marked as a drill" in out
    assert "the end of the alert was sent to webhook" in out


def test_a_destination_that_refuses_makes_the_drill_wrong(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr("watchtower.drills.notifying.SENT_S", 4.0)
    with serving() as api:
        api.answer = lambda request: (403, b"")
        key = tmp_path / "key"
        key.write_text("0123456789abcdef")
        settings = f'pagerduty_key_file = "{key}"\npagerduty_url = "{api.url}"'
        words = ["sigstop", "--ranks", "2", "--nodes", "1", "--backend", "stdlib", "--json"]
        words += ["--notify", "pagerduty", "--config", config(tmp_path, settings)]
        assert main(["drill", *words]) == 1
    captured = capsys.readouterr()
    assert "no alert was sent to pagerduty: " in captured.err
    assert "403" in captured.err
    assert "0123456789abcdef" not in captured.out + captured.err
    assert "by hand" not in captured.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["sigstop", "--notify", "slack"], "slack is not configured"),
        (["gc_pause", "--notify", "webhook"], "opens no incident, so it has no alert"),
    ],
)
def test_a_drill_without_a_destination_or_an_alert_is_refused(
    tmp_path: Path, monkeypatch, capsys, words, text
):
    monkeypatch.setenv("WATCHTOWER_WEBHOOK_URL", "http://127.0.0.1:9/")
    assert main(["drill", *words]) == 2
    captured = capsys.readouterr()
    assert text in captured.out + captured.err
