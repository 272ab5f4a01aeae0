"""Scopes: which tokens the tower knows, and what each may do. Tokens are kept as hashes only."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from watchtower.access.files import FileWatch
from watchtower.access.tokens import TokenError, parse_tokens, read_token_file


class Scope(StrEnum):
    """What a token is for. Nothing is implied, but that an operator may read."""

    AGENT = "agent"
    """Post reports and dumps, and nothing else: a node that was broken into reads no stacks."""
    READER = "reader"
    """Read jobs, verdicts, incidents, metrics."""
    OPERATOR = "operator"
    """Read, and change what the tower does."""


VARIABLES = {scope: f"WATCHTOWER_{scope.value.upper()}_TOKEN" for scope in Scope}
"""Where tokens come from when no file is named; several are separated by commas or spaces."""


@dataclass(frozen=True, slots=True)
class _Known:
    scope: Scope
    digest: bytes


class TokenBook:
    """The tokens of all scopes. `renew` may run in another thread than `scope_of`."""

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
        """Whether calls need a token."""
        return bool(self._known)

    @property
    def scopes(self) -> frozenset[Scope]:
        """Scopes that have a token."""
        return frozenset(known.scope for known in self._known)

    def scope_of(self, token: bytes) -> Scope | None:
        """Name the scope of a token; None when it is not known.

        The time taken tells nothing: every known token is compared, by hashes of one length.
        """
        digest, found = _digest(token), None
        for known in self._known:
            if hmac.compare_digest(known.digest, digest):
                found = known.scope
        return found

    def renew(self) -> bool:
        """Read the files again if one has changed; True when they were.

        Raises TokenError when one cannot be used: the tokens read last stay valid then.
        """
        if not self._watch.has_changed():
            return False
        self._known = self._read()
        return True

    def _read(self) -> tuple[_Known, ...]:
        tokens = {scope: read_token_file(path) for scope, path in self._paths.items()}
        for scope, text in self._environment.items():
            tokens[scope] = parse_tokens(text, f"${VARIABLES[scope]}")
        scope_of: dict[str, Scope] = {}
        for scope, words in tokens.items():
            for word in words:
                other = scope_of.setdefault(word, scope)
                if other is not scope:
                    raise TokenError(
                        f"the same token is given to {other.value} and {scope.value}: "
                        "each scope needs its own, `watchtower token` makes one"
                    )
        return tuple(_Known(scope, _digest(word.encode())) for word, scope in scope_of.items())


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
