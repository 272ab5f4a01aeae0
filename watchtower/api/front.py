"""The tower's ASGI application: it handles agents' messages itself, and FastAPI handles the rest.

Nearly all requests come from agents, thousands per second. FastAPI's layers took longer for a
report than the tower itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from watchtower.api.problems import AnswersWhenStopped, describe_failure, problem

log = logging.getLogger("watchtower.api")

INGEST = "/ingest/"


class Front:
    """The ASGI application of a tower."""

    def __init__(
        self, ingest: list[Route], framework: FastAPI, guard: Callable[[ASGIApp], ASGIApp]
    ) -> None:
        """`guard` checks the tokens of agents. FastAPI has the same guard for all other routes."""
        self.routes: list[BaseRoute] = [*ingest, *framework.router.routes]
        self._endpoints = {
            (method, route.path): route.endpoint
            for route in ingest
            for method in route.methods or ()
        }
        self._ingest = AnswersWhenStopped(guard(self._answer))
        self._framework = framework

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and scope["path"].startswith(INGEST):
            await self._ingest(scope, receive, send)
        else:
            await self._framework(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get((scope["method"], scope["path"]))
        if endpoint is None:
            response = self._refuse(scope["method"], scope["path"])
        else:
            try:
                response = await endpoint(Request(scope, receive))
            except Exception as error:
                log.exception("%s %s failed", scope["method"], scope["path"])
                response = problem(500, describe_failure(error))
        await response(scope, receive, send)

    def _refuse(self, method: str, path: str) -> Response:
        allowed = sorted(method for method, each in self._endpoints if each == path)
        if allowed:
            response = problem(405, f"{method} is not allowed on {path}")
            response.headers["Allow"] = ", ".join(allowed)
            return response
        return problem(404, f"there is no address {path}; see /docs for all addresses")
