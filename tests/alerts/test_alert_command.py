"""`watchtower alert test DEST`: what it sends, prints and returns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.alerts.receivers import serving
from watchtower.cli import main


def run(tmp_path: Path, name: str, settings: str) -> int:
    config = tmp_path / "tower.toml"
    config.write_text(f"[alerts]\n{settings}\n")
    return main(["alert", "test", name, "--config", str(config)])


def test_a_test_message_is_marked_sent_and_printed(tmp_path: Path, capsys):
    with serving() as api:
        assert run(tmp_path, "alertmanager", f'alertmanager_url = "{api.url}"') == 0
        ((alert,),) = api.bodies
    assert alert["labels"]["alertname"] == "WatchtowerTest"
    assert alert["annotations"]["summary"].startswith("[TEST] watchtower-test")
    printed = capsys.readouterr().out
    assert alert["annotations"]["description"] in printed
    assert "sent to alertmanager" in printed


def test_a_refusal_is_printed_without_the_secret(tmp_path: Path, capsys):
    secret = tmp_path / "key"
    secret.write_text("0123456789abcdef")
    with serving() as api:
        api.answer = lambda request: (400, request.body["routing_key"].encode())
        settings = f'pagerduty_key_file = "{secret}"\npagerduty_url = "{api.url}"'
        assert run(tmp_path, "pagerduty", settings) == 1
    captured = capsys.readouterr()
    assert "not sent to pagerduty" in captured.out
    assert "0123456789abcdef" not in captured.out + captured.err


def test_a_destination_that_is_not_configured_or_not_known_is_wrong_usage(tmp_path: Path, capsys):
    assert run(tmp_path, "slack", "") == 2
    assert "slack is not configured" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        run(tmp_path, "mail", "")
    assert stopped.value.code == 2
