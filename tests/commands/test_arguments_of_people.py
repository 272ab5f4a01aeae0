"""Words that people give by mistake: empty names, absurd durations, full disks."""

from __future__ import annotations

import errno

import pytest

from tests.commands.test_arguments import refused
from watchtower import cli
from watchtower.commands.client import NOT_WRITTEN
from watchtower.drills.catalogue import find_drill
from watchtower.drills.errors import DrillError


@pytest.mark.parametrize(
    "words",
    [
        ["incident", ""],
        ["export", " "],
        ["ack", ""],
        ["why", ""],
        ["silence", "--remove", ""],
        ["silence", "--node", "", "--for", "1h"],
        ["incidents", "--job", ""],
    ],
)
def test_an_empty_name_is_a_usage_error(words, capsys):
    assert "is empty: give a name or an id" in refused(capsys, *words)


@pytest.mark.parametrize("text", ["99999999999d", "0s", "31d"])
def test_a_duration_that_the_tower_refuses_is_a_usage_error(text, capsys):
    words = refused(capsys, "silence", "--job", "x", "--for", text)
    assert f"invalid duration '{text}': must be 1s to 30d" in words


def test_a_disk_that_is_full_is_not_wrong_usage(monkeypatch, capsys):
    def fail() -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cli, "make_token", fail)
    monkeypatch.setattr(cli, "_drop_output", lambda: None)
    assert cli.main(["token"]) == NOT_WRITTEN
    assert "cannot write the output: No space left on device" in capsys.readouterr().err


def test_a_drill_with_a_typing_error_gets_a_suggestion():
    with pytest.raises(DrillError, match="Did you mean 'dataloader_sleep'"):
        find_drill("dataloader_slep")
