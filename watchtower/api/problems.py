"""Errors as RFC 9457 problem documents instead of FastAPI's own format."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from watchtower.access.tower_connection import NO_SUCH_ADDRESS
from watchtower.tower.acts import RequestRefusedError
from watchtower.tower.store_writer import StoreFailedError
from watchtower.tower.stored_incidents import AmbiguousIdError

_TITLES = {
    400: "Bad request",
    401: "Token needed",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Ambiguous id",
    408: "Too slow",
    413: "Body too large",
    415: "Not JSON",
    421: "Unknown name of the tower",
    422: "Invalid parameter",
    429: "Too many refused messages",
    500: "Internal error",
    503: "Not available",
}

_MISTAKES = {
    "missing": "is missing",
    "extra_forbidden": "is not known",
    "json_invalid": "is not valid JSON",
    "greater_than_equal": "must be {ge} or more",
    "less_than_equal": "must be {le} or less",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "string_pattern_mismatch": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "datetime_from_date_parsing": "must be a time such as 2026-11-22T02:16:26Z",
    "datetime_parsing": "must be a time such as 2026-11-22T02:16:26Z",
    "enum": "must be {expected}",
}
"""Our sentences for pydantic's kinds of errors. The values in braces are pydantic's."""


def problem(
    status: int, detail: str, title: str = "", candidates: Sequence[str] = ()
) -> JSONResponse:
    """Return a problem document. `detail` describes what happened and what to do.

    `title` replaces the title of the status. `candidates` are the ids that match an ambiguous id.
    """
    body: dict[str, object] = {
        "type": "about:blank",
        "title": title or _TITLES.get(status) or HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    if candidates:
        body["candidates"] = list(candidates)
    return JSONResponse(body, status, media_type="application/problem+json")


async def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    detail, title = error.detail, ""
    if detail == "Not Found":
        title = NO_SUCH_ADDRESS
        detail = f"there is no address {request.url.path}; see /docs for all addresses"
    elif detail == "Method Not Allowed":
        detail = f"{request.method} is not allowed on {request.url.path}"
    response = problem(error.status_code, detail, title)
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        response.headers["Allow"] = ", ".join(sorted(_find_methods(request)))
    return response


def _find_methods(request: Request) -> set[str]:
    """Return the methods of the address that a request names. It may have several routes."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    found = (each for each in routes if each.matches(request.scope)[0] is not Match.NONE)
    path = next((each.path for each in found), None)
    return {method for each in routes if each.path == path for method in each.methods or ()}


async def _on_invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return problem(422, "; ".join(map(describe_mistake, error.errors())))


def describe_mistake(error: Mapping[str, Any]) -> str:
    """Return which parameter or field is wrong, and what it must be."""
    where = ".".join(str(part) for part in error["loc"][1:] if isinstance(part, str))
    name = f"`{where}`" if where else "the body"
    text = _MISTAKES.get(error["type"], "is not valid")
    return f"{name} {text.format(**error.get('ctx', {}))}"


async def _on_refusal(_: Request, error: Exception) -> JSONResponse:
    return problem(422, str(error))


async def _on_ambiguous_id(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AmbiguousIdError)
    return problem(409, str(error), candidates=error.candidates)


async def _on_store_failure(_: Request, error: Exception) -> JSONResponse:
    return problem(503, str(error))


async def _on_failure(_: Request, error: Exception) -> JSONResponse:
    return problem(500, describe_failure(error))


def describe_failure(error: Exception) -> str:
    """Return a description of an internal error, without the error's own text."""
    return f"the tower failed ({type(error).__name__}): see the traceback in its log"


class AnswersWhenStopped:
    """Answers requests that are cancelled because the tower stops."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request. If it is cancelled, answer 503."""
        has_begun = False

        async def note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, note)
        except asyncio.CancelledError:
            if has_begun or scope["type"] != "http":
                raise
            await problem(503, "the tower is stopping: send the request again")(
                scope, receive, send
            )


def install(app: FastAPI) -> None:
    """Make every error of `app` a problem document."""
    app.add_middleware(AnswersWhenStopped)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(RequestRefusedError, _on_refusal)
    app.add_exception_handler(AmbiguousIdError, _on_ambiguous_id)
    app.add_exception_handler(StoreFailedError, _on_store_failure)
    app.add_exception_handler(Exception, _on_failure)
