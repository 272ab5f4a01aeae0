"""Sessions by value: what a cookie contains, and what ends it. The file with the key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from watchtower.access import sessions as module
from watchtower.access.sessions import FILE, KEY_BYTES, Sessions, keep_key, make_key
from watchtower.access.tokens import Scope, TokenBook

READER, OPERATOR, AGENT = "reader-of-the-tests", "operator-of-the-tests", "agent-of-the-tests"
KEY = b"k" * KEY_BYTES
NOW, DAY = 1.7e9, 86_400.0


def book_of(**tokens: str) -> TokenBook:
    return TokenBook({}, {f"WATCHTOWER_{name.upper()}_TOKEN": t for name, t in tokens.items()})


@pytest.fixture
def book() -> TokenBook:
    return book_of(reader=READER, operator=OPERATOR, agent=AGENT)


@pytest.fixture
def sessions(book) -> Sessions:
    return Sessions(book, KEY, DAY)


def begin(sessions: Sessions, book: TokenBook, token: str = READER) -> str:
    return sessions.begin(book.find(token.encode()), NOW)


@pytest.mark.parametrize(("token", "scope"), [(READER, Scope.READER), (OPERATOR, Scope.OPERATOR)])
def test_a_session_has_the_rights_of_its_token_and_an_end(sessions, book, token, scope):
    cookie = begin(sessions, book, token)
    session = sessions.find(cookie, NOW + DAY - 1)
    assert (session.scope, session.until) == (scope, NOW + DAY)
    assert sessions.find(cookie, NOW + DAY) is None
    assert begin(sessions, book, token) != cookie


def test_a_cookie_does_not_contain_its_token(sessions, book):
    cookie = begin(sessions, book)
    token = book.find(READER.encode())
    assert READER not in cookie
    assert token.digest.hex() not in cookie
    assert len(cookie) < 100


def test_an_agents_token_begins_no_session(sessions, book):
    with pytest.raises(ValueError, match="agent"):
        begin(sessions, book, AGENT)


def test_any_change_makes_a_cookie_invalid(sessions, book):
    cookie = begin(sessions, book)
    ident, until, signature = cookie.split(".")
    for changed in (
        "",
        cookie[:-1],
        f"{cookie}x",
        f"{ident}.{int(until) + 1}.{signature}",
        f"{ident}.{until}.{'A' * 43}",
        f"{'A' * 22}.{until}.{signature}",
        f"{ident}.{'9' * 13}.{signature}",
        f"{ident}.-1.{signature}",
        f"{ident}.{until}.{signature}.",
        cookie.replace(".", ".٣", 1),
        "\0" * 5000,
    ):
        assert sessions.find(changed, NOW) is None


class TokenFiles:
    """A file of tokens for each scope, and the book that reads them."""

    def __init__(self, folder: Path) -> None:
        self._paths = {scope: folder / scope.value for scope in Scope}
        self.write()
        self.book = TokenBook({scope: str(path) for scope, path in self._paths.items()}, {})

    def write(self, **tokens: str) -> None:
        """Give these scopes one token each. Other scopes get one that no test uses."""
        for scope, path in self._paths.items():
            new = path.with_suffix(".new")
            new.touch(mode=0o600)
            new.write_text(f"{tokens.get(scope.value, f'unused-token-of-{scope.value}')}\n")
            new.replace(path)

    def give(self, **tokens: str) -> None:
        """Change the tokens while the tower runs."""
        self.write(**tokens)
        assert self.book.renew()


@pytest.fixture
def files(tmp_path) -> TokenFiles:
    return TokenFiles(tmp_path)


def test_a_session_ends_with_its_token_and_not_with_another(files):
    files.give(reader=READER, operator=OPERATOR)
    sessions = Sessions(files.book, KEY, DAY)
    reader, operator = begin(sessions, files.book), begin(sessions, files.book, OPERATOR)
    files.give(operator=OPERATOR)
    assert sessions.find(reader, NOW) is None
    assert sessions.find(operator, NOW) is not None


def test_a_session_has_the_rights_that_its_token_has_now(files):
    files.give(operator=OPERATOR)
    sessions = Sessions(files.book, KEY, DAY)
    cookie = begin(sessions, files.book, OPERATOR)
    files.give(reader=OPERATOR)
    assert sessions.find(cookie, NOW).scope is Scope.READER
    files.give(agent=OPERATOR)
    assert sessions.find(cookie, NOW) is None


def test_a_logout_ends_one_session(sessions, book):
    first, second = begin(sessions, book), begin(sessions, book)
    sessions.end(sessions.find(first, NOW), NOW)
    assert sessions.find(first, NOW) is None
    assert sessions.find(second, NOW) is not None


def test_ended_sessions_are_bounded_and_forgotten_with_their_time(sessions, book, monkeypatch):
    monkeypatch.setattr(module, "MAX_ENDED", 50)
    cookies = [begin(sessions, book) for _ in range(51)]
    for cookie in cookies:
        sessions.end(sessions.find(cookie, NOW), NOW)
    assert [sessions.find(cookie, NOW) is None for cookie in cookies] == [False] + [True] * 50
    last = sessions.begin(book.find(READER.encode()), NOW + DAY)
    sessions.end(sessions.find(last, NOW + DAY), NOW + DAY)
    assert len(sessions._ended) == 1


def test_another_key_makes_other_cookies_and_form_tokens(sessions, book):
    other = Sessions(book, make_key(), DAY)
    assert other.find(begin(sessions, book), NOW) is None
    assert other.form_token("x") != sessions.form_token("x") != sessions.form_token("y")


def test_the_key_is_kept_for_its_owner_alone(tmp_path):
    key = keep_key(tmp_path)
    assert len(key) == KEY_BYTES
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert keep_key(tmp_path) == key
    assert os.listdir(tmp_path) == [FILE]


@pytest.mark.parametrize("damage", ["short", "open", "link"])
def test_a_key_that_is_not_usable_is_replaced(tmp_path, damage, caplog):
    path, key = tmp_path / FILE, keep_key(tmp_path)
    if damage == "short":
        path.write_bytes(key[1:])
    elif damage == "open":
        path.chmod(0o644)
    else:
        path.rename(tmp_path / "other")
        path.symlink_to(tmp_path / "other")
    fresh = keep_key(tmp_path)
    assert fresh != key
    assert keep_key(tmp_path) == fresh
    assert path.stat().st_mode & 0o777 == 0o600
    assert "all sessions of web pages end" in caplog.text


def test_without_a_place_for_the_key_the_tower_starts(tmp_path, caplog):
    assert len(keep_key(tmp_path / "none")) == KEY_BYTES
    assert "a restart will end all sessions" in caplog.text
