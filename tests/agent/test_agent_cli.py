"""The command line: what it takes, and what it says when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--tower", "tower:19660"],
            "argument --tower: 'tower:19660' is not allowed: give http://",
        ),
        (["--tower", "http://"], "argument --tower: 'http://'"),
        (["--tower", "http://u:p@h"], "argument --tower"),
        (["--tower", "http://h:99999"], "argument --tower"),
        (["--interval", "0"], "argument --interval: '0' is not allowed: give 0.1 to 60"),
        (["--interval", "nan"], "argument --interval: 'nan'"),
        (["--port", "70000"], "argument --port: '70000' is not allowed: give 0 to 65535"),
        (["--match", "A"], "argument --match: 'A' is not allowed: give KEY=VALUE"),
        (["--node", ""], "argument --node: '' is not allowed"),
        (["--node", "x" * 300], "argument --node"),
        (["--root", "/nowhere"], "argument --root: '/nowhere' is not allowed"),
        (["--py-spy", "/nowhere"], "argument --py-spy: '/nowhere' is not allowed"),
        (["--token-file", "/nowhere"], "argument --token-file: '/nowhere' cannot be read"),
        (["--match", "A=1"] * 17, "argument --match: 17 given, allowed: 16"),
        (["--log-level", "loud"], "argument --log-level"),
    ],
)
def test_a_wrong_value_is_named_with_its_flag_and_what_is_allowed(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse([*TOWER, *words])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_a_token_comes_from_its_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHTOWER_TOKEN", "from-environment")
    assert parse(TOWER).token == "from-environment"
    file = tmp_path / "token"
    file.write_text("from-file\n")
    assert parse([*TOWER, "--token-file", str(file)]).token == "from-file"


def test_an_empty_token_file_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text("\n")
    with pytest.raises(SystemExit):
        parse([*TOWER, "--token-file", str(file)])
    assert "is empty" in capsys.readouterr().err
