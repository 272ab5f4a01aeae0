"""Scopes: the tokens that the tower accepts and the rights of each. Only hashes of the tokens are
in memory."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from watchtower.access.files import FileWatch
from watchtower.access.tokens import TokenError, parse_tokens, read_token_file


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
