"""The tower's ASGI application: it handles agents' messages itself, and FastAPI handles the rest.

Nearly all requests come from agents, thousands per second. FastAPI's layers took longer for a
report than the tower itself. Usual reports do not even come here: `connections.py` answers them.
Open pages ask every 2 s whether they have changed: the answer "no"
does without those layers, too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from watchtower.api.ingest import Ingest
from watchtower.api.problems import AnswersWhenStopped, describe_failure, problem

log = logging.getLogger("watchtower.api")

INGEST, API = "/ingest/", "/api/"


class Front:
    """The ASGI application of a tower."""

    def __init__(
        self,
        ingest: Ingest,
        framework: FastAPI,
        guard: Callable[[ASGIApp], ASGIApp],
        find_unchanged: Callable[[Scope], Response | None],
    ) -> None:
        """`guard` checks the rights of a request. FastAPI has the same guard for all other routes.

        `find_unchanged` returns the answer to a request for a page that its sender has; None for
        any other request.
        """
        self.routes: list[BaseRoute] = [*ingest.routes, *framework.router.routes]
        self._endpoints = {
            (method, route.path): route.endpoint
            for route in ingest.routes
            for method in route.methods or ()
        }
        self._ingest = AnswersWhenStopped(guard(self._answer))
        self._framework = framework
        self._find_unchanged = find_unchanged
        self._page = guard(self._answer_unchanged)
        self._durations = ingest.durations
        self.direct = ingest.reports
        """Answers usual reports for connections."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and scope["path"].startswith(INGEST):
            await self._ingest(scope, receive, send)
        elif scope["type"] == "http" and _asks_for_change(scope):
            await self._page(scope, receive, send)
        else:
            await self._framework(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get((scope["method"], scope["path"]))
        if endpoint is None:
            response = self._refuse(scope["method"], scope["path"])
        else:
            began = time.monotonic()
            try:
                response = await endpoint(Request(scope, receive))
            except Exception as error:
                log.exception("%s %s failed", scope["method"], scope["path"])
                response = problem(500, describe_failure(error))
            self._durations[scope["path"]].observe(time.monotonic() - began)
        await response(scope, receive, send)

    async def _answer_unchanged(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = self._find_unchanged(scope)
        await (response or self._framework)(scope, receive, send)

    def _refuse(self, method: str, path: str) -> Response:
        allowed = sorted(method for method, each in self._endpoints if each == path)
        if allowed:
            response = problem(405, f"{method} is not allowed on {path}")
            response.headers["Allow"] = ", ".join(allowed)
            return response
        return problem(404, f"there is no address {path}; see /docs for all addresses")


def _asks_for_change(scope: Scope) -> bool:
    """Return whether a request may be that of an open page."""
    is_page = scope["method"] == "GET" and not scope["path"].startswith(API)
    return is_page and any(name == b"if-none-match" for name, _ in scope["headers"])
