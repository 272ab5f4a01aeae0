"""Contexts: which tower and token the options, the environment and a person's file choose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from watchtower.cli import main, make_parser
from watchtower.commands.contexts import find_context, find_tower
from watchtower.service.settings import ConfigError

FILE = """
context = "prod"

[contexts.prod]
tower = "https://tower.example"
token_file = "prod.token"

[contexts.test]
tower = "http://127.0.0.1:19661"
token_file = "~/test.token"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("WATCHTOWER_URL", "WATCHTOWER_TOKEN", "WATCHTOWER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "watchtower.toml").write_text(FILE)
    for name in ("prod.token", "test.token"):
        (tmp_path / name).write_text(f"{name}-0123456789\n")
        (tmp_path / name).chmod(0o600)
    return tmp_path


def asked(*words: str):
    """Return the URL and the token with which `watchtower jobs` would ask."""
    found, _ = find_tower(make_parser().parse_args(["jobs", *words]), os.environ)
    return found.url, found.token.headers().get("Authorization", "").removeprefix("Bearer ")


PROD = ("https://tower.example:19660", "prod.token-0123456789")
TEST = ("http://127.0.0.1:19661", "test.token-0123456789")


def test_the_file_names_the_tower_that_is_asked_without_options(home):
    assert asked() == PROD
    assert asked("--context", "test") == TEST


def test_a_context_may_name_several_towers(home):
    several = FILE.replace('"https://tower.example"', '"https://a, https://b:1"')
    (home / "watchtower.toml").write_text(several)
    assert asked()[0] == "https://a:19660,https://b:1"


def test_an_address_is_asked_without_the_token_of_a_context(home, monkeypatch):
    assert asked("--tower", "http://other") == ("http://other:19660", "")
    monkeypatch.setenv("WATCHTOWER_URL", "https://else")
    assert asked() == ("https://else", "")
    assert asked("--context", "test") == TEST


def test_a_token_of_the_environment_is_not_sent_to_a_context(home, monkeypatch):
    monkeypatch.setenv("WATCHTOWER_TOKEN", "of-another-tower-0123456789")
    assert asked() == PROD
    (home / "watchtower.toml").write_text('[contexts.open]\ntower = "https://open"\n')
    assert asked("--context", "open") == ("https://open:19660", "")
    (home / "own.token").write_text("own-token-0123456789")
    (home / "own.token").chmod(0o600)
    assert asked("--context", "open", "--token-file", str(home / "own.token"))[1].startswith("own")


def test_without_a_file_the_environment_and_the_default_count(home, monkeypatch):
    (home / "watchtower.toml").unlink()
    monkeypatch.setenv("WATCHTOWER_TOKEN", "of-the-environment-0123456789")
    assert asked() == ("http://127.0.0.1:19660", "of-the-environment-0123456789")


@pytest.mark.parametrize(
    ("content", "words", "text"),
    [
        (FILE, ["--context", "prd"], "there is no context 'prd' in"),
        (FILE, ["--context", "prd"], "it has prod, test. Did you mean 'prod'?"),
        (FILE, ["--context", "prod", "--tower", "http://x"], "both name a tower"),
        ("", ["--context", "prod"], "it has none, or does not exist"),
        ("x = ", [], "is not valid TOML"),
        ('token = "secret"', [], "unknown key `token`, allowed are `context"),
        ("contexts = 3", [], "it is not valid, allowed are"),
        ('[contexts.a]\ntower = "x"', [], "[contexts.a]: invalid tower URL 'x'"),
        ("[contexts.a]\n", [], "[contexts.a]: invalid tower URL ''"),
        ('[contexts.a]\ntoken = "hunter2"', [], "did you mean `token_file`?"),
        ("[contexts.a]\ntower = 3", [], "`tower` is 3, allowed is a string"),
    ],
)
def test_errors_name_the_file_and_what_is_allowed(home, content, words, text, capsys):
    (home / "watchtower.toml").write_text(content)
    assert main(["jobs", *words]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert "hunter2" not in error
    assert "secret" not in error


def test_a_token_that_every_user_can_read_is_refused(home, capsys):
    (home / "prod.token").chmod(0o644)
    assert main(["jobs"]) == 2
    assert f"run chmod o= {home}/prod.token" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_an_error(home):
    (home / "watchtower.toml").unlink()
    (home / "watchtower.toml").mkdir()
    with pytest.raises(ConfigError, match=r"cannot read .*watchtower\.toml: Is a directory"):
        find_context(make_parser().parse_args(["jobs"]), {"XDG_CONFIG_HOME": str(home)})
