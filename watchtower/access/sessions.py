"""Sessions of people who logged in to the web pages with a token.

The tower stores no session. A cookie contains a random id, its end, and a signature of both and of
the hash of the token. So a session ends with its token, and has the scope that the token has now.
The key of the signatures is in a file, so that a restart of the tower ends no session.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
import stat
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path

from watchtower.access.tokens import KnownToken, Scope, TokenBook

SCOPES = frozenset({Scope.READER, Scope.OPERATOR})
"""Scopes with which a person can log in."""

MAX_ENDED = 4096
"""Sessions that ended by a logout and are remembered until their time is over. Only the holder of a
token can end one. If there are more, the oldest is forgotten."""

ID_BYTES = 16
"""Random bytes of an id: 128 bits, too many to guess."""

_COOKIE = re.compile(r"([\w-]{22})\.(\d{1,12})\.([\w-]{43})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A valid session."""

    ident: str
    scope: Scope
    until: int
    """Unix time of its end."""


class Sessions:
    """Begins, finds and ends sessions. `now` is the Unix time."""

    def __init__(self, book: TokenBook, key: bytes, lifetime_s: float) -> None:
        """`key` signs the cookies. With another key, all cookies are invalid."""
        self.lifetime_s = int(lifetime_s)
        self._book, self._key = book, key
        self._ended: dict[str, int] = {}
        """The end of each session that a logout ended, by id, in the order of the logouts."""

    def begin(self, token: KnownToken, now: float) -> str:
        """Return the cookie of a new session. Raises ValueError if the token is not a person's."""
        if token.scope not in SCOPES:
            raise ValueError(f"a token for {token.scope.value} cannot begin a session")
        ident = secrets.token_urlsafe(ID_BYTES)
        until = int(now) + self.lifetime_s
        return f"{ident}.{until}.{self._sign(token, ident, until)}"

    def find(self, cookie: str, now: float) -> Session | None:
        """Return the session of a cookie; None if it is not valid, or not any more."""
        parts = _COOKIE.fullmatch(cookie)
        if parts is None:
            return None
        ident, until, signature = parts[1], int(parts[2]), parts[3].encode()
        signer = None
        for known in self._book.known:
            signed = self._sign(known, ident, until).encode()
            if hmac.compare_digest(signed, signature) and known.scope in SCOPES:
                signer = known
        if signer is None or ident in self._ended or now >= until:
            return None
        return Session(ident=ident, scope=signer.scope, until=until)

    def end(self, session: Session, now: float) -> None:
        """Make the cookie of a session invalid until its time is over."""
        self._ended = {ident: until for ident, until in self._ended.items() if until > now}
        while len(self._ended) >= MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        self._ended[session.ident] = session.until

    def form_token(self, subject: str) -> str:
        """Return the value that the forms of a person's pages contain. Other sites cannot know it.

        `subject` identifies the session or the person.
        """
        return _text(hmac.digest(self._key, b"form\0" + subject.encode(), "sha256")[:ID_BYTES])

    def _sign(self, token: KnownToken, ident: str, until: int) -> str:
        signed = b"session\0" + token.digest + f"{ident}.{until}".encode()
        return _text(hmac.digest(self._key, signed, "sha256"))


def _text(digest: bytes) -> str:
    return urlsafe_b64encode(digest).decode().rstrip("=")


log = logging.getLogger("watchtower.access")

KEY_BYTES = 32
"""Random bytes of the key, as long as the signatures that it makes."""

FILE = "session-key"


def make_key() -> bytes:
    """Return a new random key."""
    return secrets.token_bytes(KEY_BYTES)


def keep_key(folder: Path) -> bytes:
    """Return the key in a folder; a new one if it is missing, or if not only its owner can read it.

    If it cannot be written, the key is new with every start.
    """
    path = folder / FILE
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        log.warning("%s is replaced, and all sessions of web pages end: %s", path, error)
    key = make_key()
    try:
        _write(path, key)
    except OSError as error:
        log.warning(
            "a restart will end all sessions of web pages: cannot write %s: %s", path, error
        )
    return key


def _read(path: Path) -> bytes:
    """Return the key in a file. Raises OSError; ValueError if it is not usable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        key = file.read(KEY_BYTES + 1) if stat.S_ISREG(status.st_mode) else b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"it does not have {KEY_BYTES} bytes")
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ValueError("other users can access it")
    return key


def _write(path: Path, key: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(new, flags, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(descriptor)
    new.replace(path)
