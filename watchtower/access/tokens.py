"""Tokens: what a good one is, and how one is read from a file or the environment.

The rule of this file: a token appears in no message, no repr and no log.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field

MIN_TOKEN = 16
"""Characters: some 96 random bits, which nobody guesses over a network."""

MAX_TOKEN = 512
"""Characters; a header with a longer one would be refused as too large by many proxies."""

MAX_TOKENS = 16
"""Tokens valid at once in one scope: two while they are rotated, a few more for several teams."""

MAX_FILE_BYTES = 16 * 1024
"""`MAX_TOKENS` of `MAX_TOKEN` with room for comments."""

RANDOM_BYTES = 32
"""Of a token made by `watchtower token`: 256 bits, 43 characters."""

FILE_VARIABLE = "WATCHTOWER_TOKEN_FILE"
VARIABLE = "WATCHTOWER_TOKEN"

SECRET_VARIABLES = (
    VARIABLE,
    "WATCHTOWER_AGENT_TOKEN",
    "WATCHTOWER_READER_TOKEN",
    "WATCHTOWER_OPERATOR_TOKEN",
)
"""Variables that hold tokens: no child process inherits them."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_BETWEEN_TOKENS = re.compile(r"[\s,]+")
"""token68 of RFC 9110, section 11.2: what may follow "Bearer" in a header."""


class TokenError(Exception):
    """Tokens cannot be used; the message says which source and what to do, and holds none."""


def make_token() -> str:
    """Make a token that nobody guesses."""
    return secrets.token_urlsafe(RANDOM_BYTES)


def write_token(path: str) -> None:
    """Add a new token to a file that only its owner may read. Raises OSError, TokenError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "a", encoding="ascii") as file:
        _check_file(path, os.fstat(descriptor))
        file.write(make_token() + "\n")


def read_token_file(path: str) -> tuple[str, ...]:
    """Read the tokens of a file, one a line, `#` begins a comment. Raises TokenError."""
    try:
        # O_NONBLOCK: a pipe of this name must not hold the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            _check_file(path, os.fstat(descriptor))
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TokenError(f"the token file {path} cannot be read: {error.strerror}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise TokenError(f"the token file {path} is larger than {MAX_FILE_BYTES} bytes")
    return parse_tokens(raw.decode("utf-8", "replace"), f"the token file {path}")


def parse_tokens(text: str, source: str) -> tuple[str, ...]:
    """Read the tokens of a text, separated by white space or commas. Raises TokenError."""
    words = " ".join(line.partition("#")[0] for line in text.splitlines())
    tokens = tuple(filter(None, _BETWEEN_TOKENS.split(words)))
    if not tokens:
        raise TokenError(f"{source} holds no token; `watchtower token` makes one")
    if len(tokens) > MAX_TOKENS:
        raise TokenError(f"{source} holds {len(tokens)} tokens, at most {MAX_TOKENS} are allowed")
    for number, token in enumerate(tokens, 1):
        if not MIN_TOKEN <= len(token) <= MAX_TOKEN:
            raise TokenError(
                f"{source}: token {number} has {len(token)} characters, allowed are "
                f"{MIN_TOKEN} to {MAX_TOKEN}; `watchtower token` makes a good one"
            )
        if not _TOKEN.fullmatch(token):
            raise TokenError(
                f"{source}: token {number} has characters that a header cannot carry, allowed "
                "are letters, digits and -._~+/ with = at the end; `watchtower token` makes one"
            )
    return tokens


def _check_file(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise TokenError(f"the token file {path} is not a plain file")
    if status.st_mode & stat.S_IRWXO:
        raise TokenError(
            f"the token file {path} is open to every user of this machine "
            f"(mode {stat.S_IMODE(status.st_mode):o}): chmod o= {path}"
        )


@dataclass(slots=True)
class ClientToken:
    """The token that an agent or a command shows, read again from its file on demand."""

    path: str = ""
    """Empty: it came from the environment and stays as it is."""
    _value: str = field(default="", repr=False)

    def headers(self) -> dict[str, str]:
        """What to send with a request."""
        return {"Authorization": f"Bearer {self._value}"} if self._value else {}

    def __bool__(self) -> bool:
        """Whether there is a token at all."""
        return bool(self._value)

    def renew(self, refused: Mapping[str, str]) -> bool:
        """Read the file again; True when it holds another token than these headers, which were
        refused. Raises TokenError."""
        if self.path:
            self._value = read_token_file(self.path)[0]
        return self.headers() != refused


def find_client_token(path: str, environment: Mapping[str, str]) -> ClientToken:
    """Find the token: the file named, else that of the environment, else the environment's own.

    The first token of a file counts. Raises TokenError.
    """
    if path := path or environment.get(FILE_VARIABLE, ""):
        return ClientToken(path, read_token_file(path)[0])
    if not environment.get(VARIABLE, "").strip():
        return ClientToken()
    return ClientToken("", parse_tokens(environment[VARIABLE], f"${VARIABLE}")[0])
