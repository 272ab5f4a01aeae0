"""Checks of every request, before its body is read: the scope that each route needs.

/healthz, /readyz          no token; without one, /readyz omits the limits of agents
/login, /logout            no token
/static/...                no token: the style and the script of the pages
/ingest/...                only agents
GET and HEAD, elsewhere    readers and operators (also /metrics, /docs, /openapi.json)
anything else              operators

A person may have a session, or be named by a trusted proxy, instead of a token. If the tower has no
tokens, all requests are allowed except those of web pages of other sites.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from watchtower.access import tokens
from watchtower.access.tokens import TokenBook
from watchtower.api.allowances import share_of
from watchtower.api.browsers import (
    SAFE_METHODS,
    find_cross_site,
    find_refusal,
    login_address,
    redirect,
)
from watchtower.api.problems import problem
from watchtower.api.visitors import VISITOR, Visitor, Visitors, Way

log = logging.getLogger("watchtower.api")

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/login", "/logout"})
"""Paths without a token: most orchestrators cannot send one, and a person gets a session here."""

STATIC = "/static/"
"""Files of the product. They contain nothing of any job, and the page for login needs them."""

FORM_TOKEN = b"x-form-token"
"""Header in which the script of a page sends the form token of its person. A form has a field."""

LOG_EVERY_S = 10.0
"""Seconds between two log lines about refused requests. /metrics has the count of all."""

REASONS = (
    "no_token",
    "unknown_token",
    "wrong_scope",
    "wrong_host",
    "cross_site",
    "bad_message",
    "bad_signature",
    "too_much_waste",
    "busy",
    "too_many_connections",
    "ended_session",
    "stale_form",
    "too_many_logins",
)
"""Reasons of refusals: the values of a metric's label."""

STALE_FORM = "this page is out of date: open it again, then repeat what you did"

_UNKNOWN = {
    "no_token": "this call needs a token: send a valid one as `Authorization: Bearer TOKEN`",
    "unknown_token": "the tower does not know this token: send a valid one as "
    "`Authorization: Bearer TOKEN`",
    "ended_session": "the session has ended: log in again at /login",
}
"""The text of an answer to a request without rights, by reason."""

ShowError = Callable[[Scope, int, str], Response]

_AGENT = frozenset({tokens.Scope.AGENT})
_READ = frozenset({tokens.Scope.READER, tokens.Scope.OPERATOR})
_CHANGE = frozenset({tokens.Scope.OPERATOR})


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """Who may send requests. The defaults allow everything."""

    visitors: Visitors = field(default_factory=lambda: Visitors(TokenBook({}, {})))
    refusals: Refusals = field(default_factory=Refusals)
    """Counts the refused requests."""
    hosts: frozenset[str] | None = None
    """Names of the tower. If they are given and there are no tokens, requests from web pages of
    other sites are refused. None: every name is allowed."""


class Guard:
    """ASGI middleware that checks the rights of requests, and refuses those of other sites."""

    def __init__(
        self,
        app: ASGIApp,
        rules: AccessRules,
        public_url: str = "",
        show_error: ShowError | None = None,
    ) -> None:
        """`show_error` writes a refusal as a page, for a person who opens one or sends its form."""
        self._show_error = show_error
        self._app = app
        self._visitors = rules.visitors
        self._refusals = rules.refusals
        self._hosts, self._public_url = rules.hosts, public_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visitor = scope[VISITOR] = self._visitors.identify(scope)
        response = self._refuse(scope, visitor) or self._refuse_browser(scope, visitor)
        await (response or self._app)(scope, receive, _with_headers(send))

    def _answer(self, scope: Scope, status: int, detail: str, title: str = "") -> Response:
        if self._show_error is not None and _is_of_page(scope):
            return self._show_error(scope, status, detail)
        return problem(status, detail, title)

    def _refuse(self, scope: Scope, visitor: Visitor) -> Response | None:
        """Return the refusal of a request without the rights for it; None if it has them."""
        needed = _needed(scope)
        if not needed or visitor.scope in needed:
            return None
        if visitor.scope is not None:
            return self._forbid(scope, visitor, needed)
        if not self._visitors.book:
            return None
        if visitor.way is Way.NONE and _is_of_page(scope):
            is_read = scope["method"] in ("GET", "HEAD")
            return redirect(scope, login_address(scope) if is_read else "/login")
        self._refusals.add(visitor.unknown, client_of(scope), time.monotonic())
        response = problem(401, _UNKNOWN[visitor.unknown])
        response.headers["WWW-Authenticate"] = 'Bearer realm="watchtower"'
        return response

    def _refuse_browser(self, scope: Scope, visitor: Visitor) -> Response | None:
        """Return the refusal of a request that a page of another site may have caused."""
        method, headers = scope["method"], scope["headers"]
        if not visitor.is_ambient and self._visitors.book:
            return None
        is_form, is_known = _is_form(scope), visitor.scope is not None
        if self._hosts is not None and not self._visitors.book:
            refusal = find_refusal(method, headers, self._hosts, self._public_url, is_form=is_form)
        elif is_form or is_known:
            must_be_own = method not in SAFE_METHODS
            refusal = find_cross_site(method, headers, self._public_url, must_be_own=must_be_own)
        else:
            return None
        if refusal is not None:
            self._refusals.add(refusal.reason, client_of(scope), time.monotonic())
            return self._answer(scope, refusal.status, refusal.detail)
        if is_known and not is_form and method not in SAFE_METHODS:
            return self._check_form_token(scope, visitor)
        return None

    def _check_form_token(self, scope: Scope, visitor: Visitor) -> Response | None:
        sent = [bytes(value) for name, value in scope["headers"] if name == FORM_TOKEN]
        if len(sent) == 1 and visitor.has_form_token(sent[0]):
            return None
        self._refusals.add("stale_form", client_of(scope), time.monotonic())
        return problem(403, STALE_FORM)

    def _forbid(self, scope: Scope, visitor: Visitor, needed: frozenset[tokens.Scope]) -> Response:
        self._refusals.add("wrong_scope", client_of(scope), time.monotonic())
        wanted = " or ".join(sorted(each.value for each in needed))
        known = visitor.scope.value if visitor.scope else "nobody"
        detail = f"this call needs a token for {wanted}, but the token is for {known}"
        if visitor.way is not Way.TOKEN:
            detail = f"this needs the rights of an {wanted}: you have those of a {known}"
        response = self._answer(scope, 403, detail, "Not allowed with this token")
        response.headers["WWW-Authenticate"] = (
            'Bearer realm="watchtower", error="insufficient_scope"'
        )
        return response


def is_usual_agent(scope: Scope, rules: AccessRules) -> bool:
    """Return whether the guard allows a request in any case: a usual one of an agent.

    The guard decides about all others, and about those of persons.
    """
    visitors = rules.visitors
    visitor = visitors.identify(scope)
    if visitors.book:
        return visitor.way is Way.TOKEN and visitor.scope in _AGENT
    if visitor.way is not Way.NONE:
        return False
    hosts = rules.hosts
    return hosts is None or find_refusal(scope["method"], scope["headers"], hosts) is None


def client_of(scope: Scope) -> str:
    """Return the address of a request's client, for shares and for the log."""
    client = scope.get("client")
    return share_of(str(client[0])) if client else "an unknown address"


def _needed(scope: Scope) -> frozenset[tokens.Scope]:
    """Return the scopes of which the request needs one; empty if it needs no token."""
    path: str = scope["path"]
    if path in OPEN_PATHS or path.startswith(STATIC):
        return frozenset()
    if path.startswith("/ingest/"):
        return _AGENT
    return _READ if scope["method"] in ("GET", "HEAD") else _CHANGE


def _is_form(scope: Scope) -> bool:
    """Return whether a request goes to a form of the pages. Its body is checked by `read_form`."""
    return scope["method"] == "POST" and not scope["path"].startswith(("/api/", "/ingest/"))


def _is_of_page(scope: Scope) -> bool:
    """Return whether a person opens a page or sends its form, and no program or script does."""
    if scope["path"].startswith(("/api/", "/ingest/")):
        return False
    headers = scope["headers"]
    accepts = any(b"text/html" in value for name, value in headers if name == b"accept")
    modes = [value for name, value in headers if name == b"sec-fetch-mode"]
    return accepts and modes in ([], [b"navigate"])


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            # A browser must not interpret text from a training process as HTML.
            MutableHeaders(scope=message)["X-Content-Type-Options"] = "nosniff"
        await send(message)

    return sending
