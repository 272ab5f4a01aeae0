"""The command line: suggestions, help, completion, and what each command accepts."""

from __future__ import annotations

import argparse
import errno

import pytest

from watchtower import cli
from watchtower.cli import main, make_parser
from watchtower.commands.client import MEANINGS, NOT_WRITTEN
from watchtower.drills.catalogue import find_drill
from watchtower.drills.errors import DrillError
from watchtower.service.command_line import (
    MAX_COMPARED,
    SHELLS,
    list_commands,
    suggest,
    write_script,
)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["jbos"], "unknown command 'jbos'. Did you mean 'jobs'?"),
        (["inc"], "unknown command 'inc'."),
        (["quux"], "unknown command 'quux'. See `watchtower --help`."),
        (["why", "--exitcode"], "unknown option '--exitcode'. Did you mean '--exit-code'?"),
        (["jobs", "--tow=x"], "invalid tower URL 'x'"),
        (["jobs", "more"], "unknown argument 'more'. See `watchtower jobs --help`."),
        (["help", "wyh"], "Did you mean 'why'?"),
        (["completion", "bsh"], "use bash or zsh or fish. Did you mean 'bash'?"),
        (["silence", "--job", "x", "--for", "2"], "invalid duration '2': use 30m, 2h, 1h30m or 1d"),
        (["silence", "--node", "x"], "--for DURATION is needed"),
        (["silence", "--remove", "x", "--for", "1h"], "not allowed with --remove"),
        (["silence", "--for", "1h"], "one of the arguments --job --node --user --remove"),
        (["silence", "--job", "x", "--user", "y", "--for", "1h"], "not allowed with argument"),
        (["incidents", "--since", "x"], "invalid time 'x': use 2h, 7d, 2026-11-22 or"),
        (["incidents", "--since", "9" * 31 + "d"], "invalid time '9999"),
        (["incidents", "--cause", "gpu_falt"], "Did you mean 'gpu_fault'?"),
        (["jobs", "--status", "hang"], "use healthy or suspect or hung"),
        (["ack"], "one of the arguments incident --outage is required"),
        (["ack", "01A", "--outage", "01B"], "not allowed with argument"),
        (["ack", "01A", "--by", ""], "argument --by: '' is empty: give a name, or leave the"),
        (["feedback", "01A", "right", "--by", " "], "argument --by: ' ' is empty: give a name"),
        (["silence", "--job", "x", "--for", "1h", "--by", ""], "argument --by: '' is empty"),
        (["why", "--tower", "foo"], "invalid tower URL 'foo': must start with http:// or https://"),
        (["why", "--watch", "--exit-code"], "not allowed with argument --watch"),
    ],
)
def test_a_typing_error_gets_a_suggestion_and_status_2(words, text, capsys):
    assert text in refused(capsys, *words)


def test_a_wrong_address_in_the_environment_is_refused_too(monkeypatch, capsys):
    monkeypatch.setenv("WATCHTOWER_URL", "tower:19660")
    assert main(["jobs"]) == 2
    assert "invalid tower URL 'tower:19660'" in capsys.readouterr().err


def test_a_long_word_is_not_compared():
    assert suggest("j" * (MAX_COMPARED + 1), ["j" * (MAX_COMPARED + 1)]) == ""
    assert suggest("JOBS", ["jobs"]) == " Did you mean 'jobs'?"


def test_help_describes_each_command_and_the_exit_codes(capsys):
    assert main(["help"]) == 0
    page = capsys.readouterr().out
    for code, meaning in MEANINGS.items():
        assert f"  {code:<4} {meaning}" in page
    for command in list_commands(make_parser()):
        assert main(["help", command.name]) == 0
        assert f"usage: watchtower {command.name}" in capsys.readouterr().out
        assert command.help in page


def test_commands_that_ask_a_tower_take_the_same_options():
    commands = {each.name: each for each in list_commands(make_parser())}
    asking = {"jobs", "why", "incidents", "outages", "incident", "export", "silence", "silences"}
    asking |= {"ack", "stacks", "calibration", "feedback", "nodes"}
    asking |= {"postmortem", "mcp", "advisories", "condition", "run", "doctor", "requeue"}
    for name, command in commands.items():
        names = {option for each in command.options for option in each.names}
        common = {"--tower", "--token-file", "--ca-file", "--insecure", "--context"}
        assert (common <= names) == (name in asking)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_completion_script_has_every_command_and_option(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for command in list_commands(make_parser()):
        assert command.name in script
        for option in command.options:
            assert all(name.lstrip("-") in script for name in option.names)


@pytest.mark.parametrize("shell", SHELLS)
def test_no_text_of_a_help_breaks_a_script(shell):
    parser = argparse.ArgumentParser(prog="x")
    command = parser.add_subparsers().add_parser("y", help='it\'s `rm` $(rm) [a]: \\ "q"')
    command.add_argument("--z", help="it's $HOME `rm` 5 %% [b]: c")
    script = write_script(shell, "x", list_commands(parser))
    for harmful in ("it's", "`rm`", "$(rm)", "$HOME", "[a]"):
        assert harmful not in script


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
