"""Checks of every request, before its body is read: the scope that each route needs.

/healthz, /readyz          no token; without one, /readyz omits the limits of agents
/ingest/...                only agents
/static/...                no token: the style and the script of the pages
GET and HEAD, elsewhere    readers and operators (also /metrics, /docs, /openapi.json)
anything else              operators

If the tower has no tokens, all requests are allowed except those of web pages of other sites.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from watchtower.access import scopes
from watchtower.access.scopes import TokenBook
from watchtower.api.browsers import find_refusal
from watchtower.api.client_addresses import share_of
from watchtower.api.problems import problem

log = logging.getLogger("watchtower.api")

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths without a token: most orchestrators cannot send one."""

STATIC = "/static/"
"""Files of the product. They contain nothing of any job, and the page for login needs them."""

LOG_EVERY_S = 10.0
"""Seconds between two log lines about refused requests. /metrics has the count of all."""

REASONS = (
    "no_token",
    "unknown_token",
    "wrong_scope",
    "wrong_host",
    "cross_site",
    "bad_message",
    "too_much_waste",
    "busy",
    "too_many_connections",
)
"""Reasons of refusals: the values of a metric's label."""

MAY_READ = "watchtower.may_read"
"""Key in a request's ASGI scope: whether the request may read jobs."""

_AGENT = frozenset({scopes.Scope.AGENT})
_READ = frozenset({scopes.Scope.READER, scopes.Scope.OPERATOR})
_CHANGE = frozenset({scopes.Scope.OPERATOR})


@dataclass(slots=True)
class Refusals:
    """Counts refused requests, and logs them at most every `LOG_EVERY_S` seconds."""

    counts: Counter[str] = field(default_factory=Counter)
    """By reason, one of `REASONS`."""
    _logged_at: float = float("-inf")
    _unlogged: int = 0

    def add(self, reason: str, client: str, now: float) -> None:
        """Count one refusal. `client` is the address of the request."""
        self.counts[reason] += 1
        self._unlogged += 1
        if now - self._logged_at >= LOG_EVERY_S:
            log.warning(
                "%d requests refused since the last such line, the latest from %s: %s",
                self._unlogged,
                client,
                reason.replace("_", " "),
            )
            self._logged_at, self._unlogged = now, 0


class Guard:
    """ASGI middleware that checks tokens. If the tower has none, it refuses cross-site requests."""

    def __init__(
        self,
        app: ASGIApp,
        book: TokenBook,
        refusals: Refusals,
        hosts: frozenset[str] | None = None,
        public_url: str = "",
    ) -> None:
        """`hosts` are the tower's host names. None: every name is allowed."""
        self._app = app
        self._book = book
        self._refusals = refusals
        self._hosts, self._public_url = hosts, public_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response = self._refuse(scope)
        if response is not None:
            await response(scope, receive, _with_headers(send))
        else:
            await self._app(scope, receive, _with_headers(send))

    def _refuse(self, scope: Scope) -> Response | None:
        """Return the refusal of a request; None if it is allowed."""
        if not self._book:
            scope[MAY_READ] = True
            return self._refuse_browser(scope)
        shown = _bearer(scope)
        known = None if shown is None else self._book.scope_of(shown)
        scope[MAY_READ] = known in _READ
        needed = _needed(scope)
        if known in needed or not needed:
            return None
        if known is not None:
            return self._forbid(scope, known, needed)
        reason = "no_token" if shown is None else "unknown_token"
        self._refusals.add(reason, client_of(scope), time.monotonic())
        what = "this call needs a token" if shown is None else "the tower does not know this token"
        response = problem(401, f"{what}: send a valid one as `Authorization: Bearer TOKEN`")
        response.headers["WWW-Authenticate"] = 'Bearer realm="watchtower"'
        return response

    def _refuse_browser(self, scope: Scope) -> Response | None:
        if self._hosts is None:
            return None
        refusal = find_refusal(scope["method"], scope["headers"], self._hosts, self._public_url)
        if refusal is None:
            return None
        self._refusals.add(refusal.reason, client_of(scope), time.monotonic())
        return problem(refusal.status, refusal.detail)

    def _forbid(
        self, scope: Scope, known: scopes.Scope, needed: frozenset[scopes.Scope]
    ) -> Response:
        self._refusals.add("wrong_scope", client_of(scope), time.monotonic())
        wanted = " or ".join(sorted(each.value for each in needed))
        detail = f"this call needs a token for {wanted}, but the token is for {known}"
        response = problem(403, detail, title="Not allowed with this token")
        response.headers["WWW-Authenticate"] = (
            'Bearer realm="watchtower", error="insufficient_scope"'
        )
        return response


def client_of(scope: Scope) -> str:
    """Return the address of a request's client, for shares and for the log."""
    client = scope.get("client")
    return share_of(str(client[0])) if client else "an unknown address"


def _needed(scope: Scope) -> frozenset[scopes.Scope]:
    """Return the scopes of which the request needs one; empty if it needs no token."""
    path: str = scope["path"]
    if path in OPEN_PATHS or path.startswith(STATIC):
        return frozenset()
    if path.startswith("/ingest/"):
        return _AGENT
    return _READ if scope["method"] in ("GET", "HEAD") else _CHANGE


def _bearer(scope: Scope) -> bytes | None:
    """Return the token of a request; None if it has no token, or several."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) != 1:
        return None
    kind, _, token = bytes(values[0]).partition(b" ")
    return token.strip() if kind.lower() == b"bearer" and token.strip() else None


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            # A browser must not interpret text from a training process as HTML.
            MutableHeaders(scope=message)["X-Content-Type-Options"] = "nosniff"
        await send(message)

    return sending
