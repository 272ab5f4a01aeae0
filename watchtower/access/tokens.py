"""Tokens: valid lengths and characters, and how they are read from a file or the environment.

A token must never appear in a message, a repr or a log.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field

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
