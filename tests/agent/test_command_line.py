"""The command line: what it takes, and what it says when it does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agent import config
from agent.cli import parse

TOWER = ["run", "--tower", "http://tower:19660"]


def test_the_tower_is_all_that_must_be_said() -> None:
    settings = parse(TOWER)
    assert (settings.tower, settings.port, settings.interval_s) == ("http://tower:19660", 19650, 1)
    assert settings.node
    assert settings.match == ()


def test_everything_can_be_said() -> None:
    words = "--node n7 --interval 0.5 --port 0 --match A=1 --match B=x=y --log-level debug"
    settings = parse([*TOWER, *words.split()])
    assert (settings.node, settings.interval_s, settings.port) == ("n7", 0.5, 0)
    assert settings.match == (("A", "1"), ("B", "x=y"))
    more = parse([*TOWER, "--no-source", "--py-spy", sys.executable, "--host", "::1"])
    assert (settings.read_source, more.read_source) == (True, False)
    assert (settings.py_spy, more.py_spy) == ("", sys.executable)
    assert (settings.metrics_host, more.metrics_host) == ("127.0.0.1", "::1")


def test_the_tower_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHTOWER_URL", "http://tower")
    assert parse(["run"]).tower == "http://tower:19660"
    assert parse(["run", "--tower", "http://other:1"]).tower == "http://other:1"


def test_several_towers_are_given_one_by_one_or_as_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHTOWER_URL", "http://a,http://b:1")
    assert parse(["run"]).tower == "http://a:19660,http://b:1"
    words = ["run", "--tower", "http://c", "--tower", "http://d,http://c"]
    assert parse(words).tower == "http://c:19660,http://d:19660"


@pytest.mark.parametrize("url", ["", None])
def test_without_an_address_the_tower_of_this_machine_is_used_as_by_all_commands(
    url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WATCHTOWER_URL", raising=False)
    if url is not None:
        monkeypatch.setenv("WATCHTOWER_URL", url)
    assert parse(["run"]).tower == "http://127.0.0.1:19660"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["--tower", "tower:19660"],
            "argument --tower: invalid tower URL 'tower:19660': must start with http:// or https://",
        ),
        (["--tower", "http://"], "argument --tower: invalid tower URL 'http://'"),
        (["--tower", "http://u:p@h"], "argument --tower"),
        (["--tower", "http://h:99999"], "argument --tower"),
        (["--interval", "0"], "argument --interval: invalid interval '0': must be 0.1 to 60"),
        (["--interval", "nan"], "argument --interval: invalid interval 'nan'"),
        (["--port", "70000"], "argument --port: invalid port '70000': must be 0 to 65535"),
        (["--match", "A"], "argument --match: invalid match 'A': use KEY=VALUE"),
        (["--node", ""], "argument --node: invalid name of a node ''"),
        (["--node", "x" * 300], "argument --node"),
        (["--root", "/nowhere"], "argument --root: invalid root '/nowhere'"),
        (["--py-spy", "/nowhere"], "argument --py-spy: invalid tool '/nowhere'"),
        (["--token-file", "/nowhere"], "cannot read the token file /nowhere"),
        (["--match", "A=1"] * 17, "argument --match: 17 given, allowed: 16"),
        (["--log-level", "loud"], "argument --log-level"),
    ],
)
def test_a_wrong_value_is_named_with_its_flag_and_what_is_allowed(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse([*TOWER, *words])
    assert stopped.value.code == 2
    assert text in capsys.readouterr().err


def a_token_file(folder: Path, text: str) -> str:
    file = folder / "token"
    file.touch(mode=0o600)
    file.write_text(text)
    return str(file)


SECURE = ["run", "--tower", "https://tower:19660"]


def test_a_token_comes_from_its_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHTOWER_TOKEN", "from-environment")
    assert parse(SECURE).token.headers() == {"Authorization": "Bearer from-environment"}
    file = a_token_file(tmp_path, "from-the-token-file\n")
    given = parse([*SECURE, "--token-file", file]).token
    assert given.headers() == {"Authorization": "Bearer from-the-token-file"}
    monkeypatch.setenv("WATCHTOWER_TOKEN_FILE", file)
    assert parse(SECURE).token == given


def test_a_token_is_not_in_what_a_log_could_show_of_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WATCHTOWER_TOKEN", "from-environment")
    assert "from-environment" not in repr(parse(SECURE))


def test_a_token_is_not_sent_in_the_open_unless_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WATCHTOWER_TOKEN", "from-environment")
    with pytest.raises(SystemExit):
        parse(TOWER)
    text = capsys.readouterr().err
    assert "use https://, or add --insecure" in text
    assert "from-environment" not in text
    assert parse([*TOWER, "--insecure"]).token
    assert parse(["run", "--tower", "http://127.0.0.1:19660"]).token


def test_authorities_that_cannot_be_read_stop_the_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse([*SECURE, "--ca-file", "/nowhere"])
    assert "cannot read the CA file /nowhere" in capsys.readouterr().err


def test_an_empty_token_file_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse([*TOWER, "--token-file", a_token_file(tmp_path, "\n")])
    assert "has no token" in capsys.readouterr().err


def test_a_check_reads_the_settings_of_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "agent.env"
    file.write_text(
        "# a comment\n; another\nWATCHTOWER_URL='https://tower.example'\n"
        "WATCHTOWER_AGENT_OPTIONS=--node n7 \\\n  --match A=1\nnonsense\n"
    )
    monkeypatch.setattr(config, "DEFAULT_PATH", str(file))
    monkeypatch.setenv("WATCHTOWER_URL", "http://mine")
    settings = parse(["doctor"])
    assert (settings.tower, settings.node) == ("https://tower.example:19660", "n7")
    assert (settings.match, settings.settings_file) == ((("A", "1"),), str(file))
    assert parse(["doctor", "--node", "n8"]).node == "n8"
    assert parse(["doctor", "--tower", "http://other"]).settings_file == ""
    assert parse(["doctor", "--tower", "http://other", "--env-file", str(file)]).node == "n7"
    assert parse(["run"]).tower == "http://mine:19660"


def test_a_check_needs_no_settings_of_a_service(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(config, "DEFAULT_PATH", "/nowhere")
    monkeypatch.setenv("WATCHTOWER_URL", "http://mine")
    assert parse(["doctor"]).settings_file == ""
    with pytest.raises(SystemExit):
        parse(["doctor", "--env-file", "/nowhere"])
    assert "--env-file: /nowhere does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"WATCHTOWER_AGENT_OPTIONS=--node 'x", "No closing quotation"),
        (b"\xff", "it is not UTF-8"),
        (b"A=" + b"x" * config.MAX_BYTES, "not an environment file"),
        (b"WATCHTOWER_AGENT_OPTIONS=--nod\xc3\xa9 x", "unknown option"),
        (
            b"WATCHTOWER_URL=http://t\nWATCHTOWER_AGENT_OPTIONS=--token-file /run/credentials/x/t",
            "LoadCredential=",
        ),
    ],
)
def test_wrong_settings_of_a_service_are_refused(
    content: bytes, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "agent.env"
    file.write_bytes(content)
    with pytest.raises(SystemExit) as stopped:
        parse(["doctor", "--env-file", str(file)])
    assert stopped.value.code == 2
    assert text in capsys.readouterr().err


def test_a_typing_error_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["run", "--tower", "http://t", "--spool-dri", "x"])
    assert "Did you mean '--spool-dir'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["help"], "usage: watchtower-agent"),
        (["help", "doctor"], "--env-file"),
        (["completion", "bash"], "complete -o default -F _watchtower_agent watchtower-agent"),
    ],
)
def test_help_and_completion_need_no_tower(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(words)
    assert (stopped.value.code, text in capsys.readouterr().out) == (0, True)
