"""Tokens: what is taken, what is refused in words, and that none is ever shown."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from watchtower.access.tokens import (
    MAX_FILE_BYTES,
    MIN_TOKEN,
    VARIABLE,
    Scope,
    TokenBook,
    TokenError,
    find_client_token,
    make_token,
    parse_tokens,
    read_token_file,
    write_token,
)

OLD, NEW = "the-old-token-of-agents", "the-new-token-of-agents"


@pytest.fixture
def token_file(tmp_path: Path):
    def write(text: str, mode: int = 0o600, name: str = "token") -> str:
        file = tmp_path / name
        file.write_text(text)
        file.chmod(mode)
        return str(file)

    return write


def test_made_tokens_are_good_and_never_the_same():
    tokens = {make_token() for _ in range(100)}
    assert len(tokens) == 100
    assert parse_tokens(" ".join(list(tokens)[:16]), "here")


def test_a_file_made_by_the_command_is_for_its_owner_and_grows(tmp_path):
    path = tmp_path / "token"
    write_token(str(path))
    write_token(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(set(read_token_file(str(path)))) == 2


def test_a_file_has_one_token_a_line_and_comments(token_file):
    path = token_file(f"# of the cluster\n{OLD}\n\n{NEW}  # since May\n")
    assert read_token_file(path) == (OLD, NEW)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no token"),
        ("# nothing\n", "has no token"),
        ("short", f"token 1 has 5 characters, allowed are {MIN_TOKEN} to"),
        (OLD + "\n" + "x" * 600, "token 2 has 600 characters"),
        (OLD + "é", "characters that are not valid in a header"),
        (OLD + "\x00", "characters that are not valid in a header"),
        ("\n".join([OLD] * 17), "has 17 tokens, at most 16"),
        (" " * (MAX_FILE_BYTES + 1), "is larger than"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_showing_what_it_holds(
    token_file, text, words
):
    with pytest.raises(TokenError, match=words) as raised:
        read_token_file(token_file(text))
    assert OLD not in str(raised.value)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o644, 0o777])
def test_a_file_that_everybody_may_read_or_write_is_refused(token_file, mode):
    with pytest.raises(TokenError, match="every user of this machine can access"):
        read_token_file(token_file(OLD, mode))


def test_a_group_may_read_a_file(token_file):
    assert read_token_file(token_file(OLD, 0o640)) == (OLD,)


def test_what_is_no_file_does_not_hold_the_start(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(TokenError, match="is not a regular file"):
        read_token_file(str(tmp_path / "pipe"))
    with pytest.raises(TokenError, match=r"cannot read .*: No such file"):
        read_token_file(str(tmp_path / "none"))


def test_a_file_wins_over_the_environment_and_an_argument_over_both(token_file):
    path, other = token_file(OLD), token_file(NEW, name="other")
    environment = {"WATCHTOWER_TOKEN": "x" * 20, "WATCHTOWER_TOKEN_FILE": path}
    assert OLD in find_client_token("", environment).headers()["Authorization"]
    assert NEW in find_client_token(other, environment).headers()["Authorization"]
    assert not find_client_token("", {})
    assert find_client_token("", {}).headers() == {}


def test_no_repr_shows_a_token(token_file):
    path = token_file(OLD)
    book = TokenBook({Scope.AGENT: path}, {"WATCHTOWER_READER_TOKEN": NEW})
    for value in (find_client_token(path, {}), book, vars(book)["_known"]):
        assert OLD not in repr(value)


def test_a_book_knows_every_token_of_every_scope(token_file):
    book = TokenBook(
        {Scope.AGENT: token_file(f"{OLD}\n{NEW}"), Scope.READER: ""},
        {"WATCHTOWER_READER_TOKEN": "a" * 20 + "," + "b" * 20, "WATCHTOWER_AGENT_TOKEN": "c" * 20},
    )
    assert book.scopes == {Scope.AGENT, Scope.READER}
    assert book.scope_of(OLD.encode()) is book.scope_of(NEW.encode()) is Scope.AGENT
    assert book.scope_of(b"b" * 20) is Scope.READER
    for unknown in (b"", b"c" * 20, OLD.encode() + b"x", OLD.encode()[:-1], b"\xff" * 5000):
        assert book.scope_of(unknown) is None


def test_one_token_for_two_scopes_is_refused():
    environment = {"WATCHTOWER_AGENT_TOKEN": OLD, "WATCHTOWER_READER_TOKEN": OLD}
    with pytest.raises(TokenError, match="agent and reader have the same token") as raised:
        TokenBook({}, environment)
    assert OLD not in str(raised.value)


def test_a_book_follows_its_files(token_file):
    path = token_file(OLD)
    book = TokenBook({Scope.AGENT: path}, {})
    assert not book.renew()
    token_file(f"{OLD}\n{NEW}")
    assert book.renew()
    assert book.scope_of(OLD.encode()) is book.scope_of(NEW.encode()) is Scope.AGENT
    token_file(NEW)
    book.renew()
    assert book.scope_of(OLD.encode()) is None


@pytest.mark.parametrize(("text", "mode"), [("", 0o600), (NEW, 0o644), ("short", 0o600)])
def test_a_file_that_became_unusable_leaves_the_tokens_as_they_were(token_file, text, mode):
    book = TokenBook({Scope.AGENT: token_file(OLD)}, {})
    token_file(text, mode)
    with pytest.raises(TokenError):
        book.renew()
    assert book.scope_of(OLD.encode()) is Scope.AGENT
    assert not book.renew()  # and that is told once


def test_a_client_token_renewed_by_one_thread_is_new_to_the_other_that_was_refused(tmp_path):
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text("the-first-token-of-all")
    token = find_client_token(str(file), {})
    shown = token.headers()
    assert not token.renew(shown)
    file.write_text("the-second-token-of-all")
    assert token.renew(shown)
    assert token.renew(shown)
    assert not token.renew(token.headers())
    assert not find_client_token("", {VARIABLE: "s3cret-s3cret-s3cret"}).renew(
        {"Authorization": "Bearer s3cret-s3cret-s3cret"}
    )
