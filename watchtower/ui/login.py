"""/login and /logout: a person sends a token once, and the browser keeps a cookie instead.

The cookie is strict: a browser does not send it with a link from another site, such as one in an
alert. Such a request therefore arrives at /login as if nobody were logged in. Before the form is
shown, the page loads itself again. That request comes from the tower's own page and has the cookie.
"""

from __future__ import annotations

import logging
import time
from urllib.parse import quote, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from watchtower.access.sessions import SCOPES
from watchtower.access.tls import is_loopback
from watchtower.api.browsers import OWN_SITES, check_next, redirect
from watchtower.api.security import Refusals, client_of
from watchtower.api.visitors import Visitors, visitor_of
from watchtower.service.sharing import TokenBuckets
from watchtower.ui.actions import read_form
from watchtower.ui.pages import Pages, Shown

log = logging.getLogger("watchtower.login")

LOGIN_BURST = 20
"""Failed logins of one address at once: several persons behind one proxy who mistype."""

LOGIN_PER_S = 0.1
"""Failed logins per second after the burst."""

MAX_LOGIN_ADDRESSES = 4096
"""Addresses whose failed logins are counted. A further one takes over the bucket of another."""

RETRY_AFTER_S = 10
"""Seconds after which one more login is allowed."""

UNKNOWN = "The tower does not know this token."
FOR_AGENTS = "This token is for agents. Use one for readers or operators."
TOO_MANY = "Too many logins failed at this address. Try again in some seconds."
NOT_SECURE = "Open this page with https://: over http:// the browser drops the login."


class Logins:
    """The two routes of one tower."""

    def __init__(self, pages: Pages, visitors: Visitors, refusals: Refusals) -> None:
        self._pages, self._visitors, self._refusals = pages, visitors, refusals
        self._failures = TokenBuckets[str](LOGIN_BURST, LOGIN_PER_S, MAX_LOGIN_ADDRESSES)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/login", self._get, methods=["GET"]),
            Route("/login", self._post, methods=["POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
        ]

    async def _get(self, request: Request) -> Response:
        back = check_next(request.query_params.get("next", "/"))
        if visitor_of(request.scope).may_read:
            return redirect(request.scope, back)
        if "again" in request.query_params or _comes_from_own_page(request):
            return self._show_form(request, back)
        again = f"./login?next={quote(back, safe='/')}&again=1"
        shown = Shown(template="landing.html", values={"again": again})
        headers = {"Refresh": f"0; url={again}"}
        return self._pages.show(request.scope, shown, headers=headers)

    async def _post(self, request: Request) -> Response:
        visitors, address = self._visitors, client_of(request.scope)
        bucket = self._failures.use(address)
        if not bucket.take(time.monotonic()):
            return self._refuse(request, "/", "too_many_logins", TOO_MANY, status=429)
        try:
            fields = await read_form(request, has_token=False)
        except HTTPException as error:
            self._refusals.add("bad_message", address, time.monotonic())
            return self._pages.show_error(request.scope, error.status_code, error.detail)
        back = check_next(fields.get("next", "/"))
        if visitors.is_secure and _is_over_http(request):
            return self._show_form(request, back, NOT_SECURE, status=403)
        token = visitors.book.find(fields.get("token", "").strip().encode())
        if token is None and visitors.book:
            return self._refuse(request, back, "unknown_token", UNKNOWN)
        if token is not None and token.scope not in SCOPES:
            return self._refuse(request, back, "wrong_scope", FOR_AGENTS)
        bucket.spend(time.monotonic(), -1)
        response = redirect(request.scope, back)
        if token is not None:
            self._end_session(request)
            log.info("login with a token for %s from %s", token.scope.value, address)
            cookie = visitors.sessions.begin(token, visitors.now())
            self._set_cookie(response, cookie, visitors.sessions.lifetime_s)
        return response

    async def _log_out(self, request: Request) -> Response:
        if visitor_of(request.scope).session is not None:
            try:
                await read_form(request)
            except HTTPException as error:
                return self._pages.show_error(request.scope, error.status_code, error.detail)
            self._end_session(request)
        response = redirect(request.scope, "/login?again=1")
        self._set_cookie(response, "", 0)
        return response

    def _end_session(self, request: Request) -> None:
        session = visitor_of(request.scope).session
        if session is not None:
            self._visitors.sessions.end(session, self._visitors.now())

    def _set_cookie(self, response: Response, value: str, max_age_s: int) -> None:
        response.set_cookie(
            self._visitors.cookie,
            value,
            max_age=max_age_s,
            path="/",
            secure=self._visitors.is_secure,
            httponly=True,
            samesite="strict",
        )

    def _refuse(
        self, request: Request, back: str, reason: str, text: str, status: int = 403
    ) -> Response:
        self._refusals.add(reason, client_of(request.scope), time.monotonic())
        response = self._show_form(request, back, text, status)
        if status == 429:
            response.headers["Retry-After"] = str(RETRY_AFTER_S)
        return response

    def _show_form(
        self, request: Request, back: str, text: str = "", status: int = 200
    ) -> Response:
        values = {"back": back, "text": text}
        shown = Shown(template="login.html", values=values)
        return self._pages.show(request.scope, shown, status, {"Cache-Control": "no-store"})


def _comes_from_own_page(request: Request) -> bool:
    """Return whether the browser has sent a strict cookie if it has one."""
    return request.headers.get("sec-fetch-site", "").encode() in OWN_SITES


def _is_over_http(request: Request) -> bool:
    """Return whether the browser would drop a secure cookie."""
    try:
        origin = urlsplit(request.headers.get("origin", ""))
        return origin.scheme == "http" and not is_loopback(origin.hostname or "")
    except ValueError:
        return False
