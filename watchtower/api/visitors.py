"""The sender of a request: known by a token, the cookie of a session, or the header of a proxy.

Browsers add cookies, and a proxy adds its header, to requests that pages of other sites cause.
`Guard` checks such requests for that.
"""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from starlette.types import Scope as Request

from watchtower.access.sessions import SCOPES, Session, Sessions, make_key
from watchtower.access.tokens import Scope, TokenBook
from watchtower.wire.bounds import MAX_NAME
from watchtower.writing.printable import printable

Headers = Sequence[tuple[bytes, bytes]]

VISITOR = "watchtower.visitor"
"""Key in a request's ASGI scope: the `Visitor`."""

COOKIE, SECURE_COOKIE = "watchtower-session", "__Host-watchtower-session"
"""Name of the cookie. A browser accepts the second only over TLS, and from this host alone."""


class Way(Enum):
    """How the tower knows a visitor."""

    NONE = "none"
    """Not at all. A tower without tokens allows everything to such a visitor."""
    TOKEN = "token"
    SESSION = "session"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """The sender of a request, with its rights."""

    way: Way = Way.NONE
    scope: Scope | None = None
    """None: no rights, or all rights on a tower without tokens."""
    name: str = ""
    """The person, if a trusted proxy names one."""
    session: Session | None = None
    form_token: str = ""
    """The token that a form of the person's pages must contain."""
    unknown: str = ""
    """Why what was sent gives no rights, one of `security.REASONS`."""
    is_free: bool = False
    """Whether the tower has no tokens, so that everything is allowed."""

    @property
    def may_read(self) -> bool:
        """Whether the visitor may read jobs."""
        return self.is_free or self.scope in SCOPES

    @property
    def may_change(self) -> bool:
        """Whether the visitor may acknowledge and silence."""
        return self.is_free or self.scope is Scope.OPERATOR

    @property
    def is_ambient(self) -> bool:
        """Whether a page of another site could cause this request with the same rights."""
        return self.way is not Way.TOKEN

    def has_form_token(self, sent: bytes) -> bool:
        """Return whether `sent` is the form token of the person's pages.

        A request with a token of the tower needs none: no page of another site can send it.
        """
        if not self.is_ambient:
            return True
        return bool(self.form_token) and hmac.compare_digest(self.form_token.encode(), sent)


class TrustedUsers:
    """The header in which a proxy names a person, and from which addresses it counts."""

    def __init__(
        self, header: str = "", proxies: Iterable[str] = (), scope: Scope = Scope.READER
    ) -> None:
        """Without a header nobody is named. Raises ValueError if a proxy is not an address."""
        self.scope = scope
        self._header = header.lower().encode()
        self._networks = tuple(ipaddress.ip_network(proxy) for proxy in proxies)
        self._is_trusted = lru_cache(maxsize=256)(self._find_network)

    def find(self, request: Request) -> str:
        """Return the person that a proxy names in a request; "" if none does."""
        client = request.get("client")
        if not self._header or not client or not self._is_trusted(str(client[0])):
            return ""
        named = [value for name, value in request["headers"] if name == self._header]
        if len(named) != 1:
            return ""
        return printable(bytes(named[0]).decode("utf-8", "replace"), MAX_NAME)

    def _find_network(self, address: str) -> bool:
        try:
            known = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(known, ipaddress.IPv6Address) and known.ipv4_mapped is not None:
            known = known.ipv4_mapped
        return any(known in network for network in self._networks)


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """How persons get rights, other than by a token in each request."""

    key: bytes = field(default_factory=make_key, repr=False)
    """Signs the cookies of sessions."""
    session_s: float = 86_400.0
    trusted: TrustedUsers = field(default_factory=TrustedUsers)
    is_secure: bool = False
    """Browsers reach the tower over TLS, its own or that of a proxy."""


class Visitors:
    """Finds out who sends a request."""

    def __init__(
        self,
        book: TokenBook,
        people: People | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` returns the Unix time."""
        people = people or People()
        self.book = book
        self.sessions = Sessions(book, people.key, people.session_s)
        self.is_secure, self.now = people.is_secure, clock
        self.cookie = SECURE_COOKIE if people.is_secure else COOKIE
        self._trusted = people.trusted
        self._open_form_token = self.sessions.form_token("open")

    def identify(self, request: Request) -> Visitor:
        """Return who sends a request. A token counts before a cookie, and that before a proxy."""
        shown = bearer_of(request) if self.book else None
        if shown is not None:
            return self._of_token(shown)
        cookie = find_cookie(request["headers"], self.cookie) if self.book else None
        session = self.sessions.find(cookie, self.now()) if cookie is not None else None
        if session is not None:
            return self._of_session(session)
        if name := self._trusted.find(request):
            return self._of_person(name)
        if not self.book:
            return Visitor(is_free=True, form_token=self._open_form_token)
        return Visitor(unknown="no_token" if cookie is None else "ended_session")

    def _of_token(self, shown: bytes) -> Visitor:
        scope = self.book.scope_of(shown)
        if scope is None:
            return Visitor(way=Way.TOKEN, unknown="unknown_token")
        return Visitor(way=Way.TOKEN, scope=scope)

    def _of_session(self, session: Session) -> Visitor:
        return Visitor(
            way=Way.SESSION,
            scope=session.scope,
            session=session,
            form_token=self.sessions.form_token(f"session {session.ident}"),
        )

    def _of_person(self, name: str) -> Visitor:
        scope = self._trusted.scope
        return Visitor(
            way=Way.PROXY,
            scope=scope,
            name=name,
            form_token=self.sessions.form_token(f"person {name}"),
        )


def visitor_of(request: Request) -> Visitor:
    """Return who sends a request that the guard has checked."""
    visitor = request[VISITOR]
    assert isinstance(visitor, Visitor)
    return visitor


def bearer_of(request: Request) -> bytes | None:
    """Return the token of a request; None if it has no token, or several."""
    values = [value for name, value in request["headers"] if name == b"authorization"]
    if len(values) != 1:
        return None
    kind, _, token = bytes(values[0]).partition(b" ")
    return token.strip() if kind.lower() == b"bearer" and token.strip() else None


def find_cookie(headers: Headers, name: str) -> str | None:
    """Return the value of a cookie; None if there is none, or several of this name."""
    prefix = f"{name}=".encode()
    values = [
        pair.strip()[len(prefix) :]
        for key, value in headers
        if key == b"cookie"
        for pair in bytes(value).split(b";")
        if pair.strip().startswith(prefix)
    ]
    return values[0].decode("ascii", "replace") if len(values) == 1 else None
