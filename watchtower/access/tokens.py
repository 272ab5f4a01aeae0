"""Tokens: valid lengths and characters, how they are read from a file or the environment, and which
rights each of those that the tower accepts has.

A token must never appear in a message, a repr or a log. The tower has only hashes in memory.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

MIN_TOKEN = 16
"""Characters: about 96 random bits, too many to guess over a network."""

MAX_TOKEN = 512
"""Characters. Many proxies refuse the header of a longer token as too large."""

MAX_TOKENS = 16
"""Valid tokens in one scope: two during a rotation, and a few more for several teams."""

MAX_FILE_BYTES = 16 * 1024
"""`MAX_TOKENS` tokens of `MAX_TOKEN` characters, and comments of the same size."""

RANDOM_BYTES = 32
"""Random bytes of a token from `watchtower token`: 256 bits, 43 characters."""

FILE_VARIABLE = "WATCHTOWER_TOKEN_FILE"
VARIABLE = "WATCHTOWER_TOKEN"

SECRET_VARIABLES = (
    VARIABLE,
    "WATCHTOWER_AGENT_TOKEN",
    "WATCHTOWER_READER_TOKEN",
    "WATCHTOWER_OPERATOR_TOKEN",
)
"""Environment variables with tokens. Child processes do not inherit them."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_BETWEEN_TOKENS = re.compile(r"[\s,]+")
"""`_TOKEN` is token68 of RFC 9110, section 11.2: the text after "Bearer" in a header."""


class TokenError(Exception):
    """Tokens are not usable. The message names the source and what to do, and contains no token."""


def make_token() -> str:
    """Return a new random token."""
    return secrets.token_urlsafe(RANDOM_BYTES)


def write_token(path: str) -> None:
    """Append a new token to a file. A new file is readable by its owner only.

    Raises OSError, TokenError.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "a", encoding="ascii") as file:
        _check_file(path, os.fstat(descriptor))
        file.write(make_token() + "\n")


def read_token_file(path: str) -> tuple[str, ...]:
    """Return the tokens of a file: one per line, and `#` starts a comment. Raises TokenError."""
    try:
        # O_NONBLOCK: a pipe of this name must not block the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            _check_file(path, os.fstat(descriptor))
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TokenError(f"cannot read the token file {path}: {error.strerror}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise TokenError(f"the token file {path} is larger than {MAX_FILE_BYTES} bytes")
    return parse_tokens(raw.decode("utf-8", "replace"), f"the token file {path}")


def parse_tokens(text: str, source: str) -> tuple[str, ...]:
    """Return the tokens of a text, which white space or commas separate. Raises TokenError."""
    words = " ".join(line.partition("#")[0] for line in text.splitlines())
    tokens = tuple(filter(None, _BETWEEN_TOKENS.split(words)))
    if not tokens:
        raise TokenError(f"{source} has no token: create one with `watchtower token`")
    if len(tokens) > MAX_TOKENS:
        raise TokenError(f"{source} has {len(tokens)} tokens, at most {MAX_TOKENS} are allowed")
    for number, token in enumerate(tokens, 1):
        if not MIN_TOKEN <= len(token) <= MAX_TOKEN:
            raise TokenError(
                f"{source}: token {number} has {len(token)} characters, allowed are "
                f"{MIN_TOKEN} to {MAX_TOKEN}: create one with `watchtower token`"
            )
        if not _TOKEN.fullmatch(token):
            raise TokenError(
                f"{source}: token {number} has characters that are not valid in a header; use "
                "letters, digits and -._~+/ with = at the end, or `watchtower token`"
            )
    return tokens


def _check_file(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise TokenError(f"the token file {path} is not a regular file")
    if status.st_mode & stat.S_IRWXO:
        raise TokenError(
            f"every user of this machine can access the token file {path} "
            f"(mode {stat.S_IMODE(status.st_mode):o}): run chmod o= {path}"
        )


@dataclass(slots=True)
class ClientToken:
    """The token that an agent or a command sends. It can be read again from its file."""

    path: str = ""
    """Empty: the token came from the environment and does not change."""
    _value: str = field(default="", repr=False)

    def headers(self) -> dict[str, str]:
        """Return the headers to send with a request."""
        return {"Authorization": f"Bearer {self._value}"} if self._value else {}

    def __bool__(self) -> bool:
        """Return whether there is a token."""
        return bool(self._value)

    def renew(self, refused: Mapping[str, str]) -> bool:
        """Read the file again. Return whether its token differs from the one in the `refused`
        headers. Raises TokenError."""
        if self.path:
            self._value = read_token_file(self.path)[0]
        return self.headers() != refused


def find_client_token(path: str, environment: Mapping[str, str]) -> ClientToken:
    """Return the token of the file `path`, else of the file in $WATCHTOWER_TOKEN_FILE, else the
    token in $WATCHTOWER_TOKEN.

    The first token of a file is used. Raises TokenError.
    """
    if path := path or environment.get(FILE_VARIABLE, ""):
        return ClientToken(path, read_token_file(path)[0])
    if not environment.get(VARIABLE, "").strip():
        return ClientToken()
    return ClientToken("", parse_tokens(environment[VARIABLE], f"${VARIABLE}")[0])


FileState = tuple[int, int, int] | None


class FileWatch:
    """Compares files with their state at the last call."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(paths)
        self._states = self._read()

    def has_changed(self) -> bool:
        """Return whether a file has changed since the last call."""
        before, self._states = self._states, self._read()
        return before != self._states

    def _read(self) -> tuple[FileState, ...]:
        return tuple(map(_state_of, self._paths))


def _state_of(path: str) -> FileState:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class Scope(Enum):
    """The rights of a token. A scope implies no other scope, except that an operator may read."""

    AGENT = "agent"
    """Post reports and dumps only: an attacker on a node cannot read stacks."""
    READER = "reader"
    """Read jobs, verdicts, incidents, metrics."""
    OPERATOR = "operator"
    """Read, acknowledge incidents and silence alerts."""


VARIABLES = {scope: f"WATCHTOWER_{scope.value.upper()}_TOKEN" for scope in Scope}
"""Environment variables with the tokens, used if no file is named. Commas or spaces separate
tokens."""


@dataclass(frozen=True, slots=True)
class KnownToken:
    """A token that the tower accepts."""

    scope: Scope
    digest: bytes


class TokenBook:
    """The tokens of all scopes. `renew` and `scope_of` may run in different threads."""

    def __init__(self, paths: Mapping[Scope, str], environment: Mapping[str, str]) -> None:
        """Read every token. Raises TokenError."""
        self._paths = {scope: path for scope, path in paths.items() if path}
        self._environment = {
            scope: environment[name]
            for scope, name in VARIABLES.items()
            if scope not in self._paths and environment.get(name, "").strip()
        }
        self._watch = FileWatch(self._paths.values())
        self._known = self._read()

    def __bool__(self) -> bool:
        """Return whether calls need a token."""
        return bool(self._known)

    @property
    def scopes(self) -> frozenset[Scope]:
        """The scopes that have a token."""
        return frozenset(known.scope for known in self._known)

    @property
    def known(self) -> tuple[KnownToken, ...]:
        """All tokens that are valid now."""
        return self._known

    def find(self, token: bytes) -> KnownToken | None:
        """Return a token as it is known; None if it is unknown.

        The duration reveals nothing about the tokens: the hash of the token is compared with the
        hashes of all known tokens, which have the same length.
        """
        digest, found = _digest(token), None
        for known in self._known:
            if hmac.compare_digest(known.digest, digest):
                found = known
        return found

    def scope_of(self, token: bytes) -> Scope | None:
        """Return the scope of a token; None if the token is unknown."""
        found = self.find(token)
        return found.scope if found else None

    def renew(self) -> bool:
        """Read the files again if one has changed. Return whether they were read.

        Raises TokenError if a file is not usable. The tokens that were read before then stay valid.
        """
        if not self._watch.has_changed():
            return False
        self._known = self._read()
        return True

    def _read(self) -> tuple[KnownToken, ...]:
        tokens = {scope: read_token_file(path) for scope, path in self._paths.items()}
        for scope, text in self._environment.items():
            tokens[scope] = parse_tokens(text, f"${VARIABLES[scope]}")
        scope_of: dict[str, Scope] = {}
        for scope, words in tokens.items():
            for word in words:
                other = scope_of.setdefault(word, scope)
                if other is not scope:
                    raise TokenError(
                        f"the scopes {other.value} and {scope.value} have the same token: each "
                        "scope needs its own; create one with `watchtower token`"
                    )
        return tuple(KnownToken(scope, _digest(word.encode())) for word, scope in scope_of.items())


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
