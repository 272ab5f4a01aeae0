"""POST /slack/commands: a slash command of Slack, allowed by its signature instead of a token.

This application is before the guard of tokens. All other requests go on to the tower's. Without a
signing secret it is not there, and the path does not exist.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from watchtower.access.slack_signature import SlackSignatures
from watchtower.api.intake import RefusedError, read_body
from watchtower.api.problems import describe_failure, problem
from watchtower.api.security import Refusals, client_of
from watchtower.api.slack_answers import Asked, SlackAnswers
from watchtower.service.calls import timeout
from watchtower.writing import slack_blocks

PATH = "/slack/commands"

MAX_BODY = 16 * 1024
"""Bytes of a command. Slack's fields and the text of a person have some 1 KB."""

MAX_FIELDS = 64
"""Fields of a command: Slack sends some 15."""

ANSWER_S = 2.5
"""Seconds for an answer: after 3 s Slack shows an error instead."""

LATE = "The tower is busy. Try again."

log = logging.getLogger("watchtower.api")


class SlackCommands:
    """ASGI application in front of the tower's."""

    def __init__(
        self,
        app: ASGIApp,
        answers: SlackAnswers,
        signatures: SlackSignatures,
        refusals: Refusals,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._app, self._answers, self._signatures = app, answers, signatures
        self._refusals, self._wall = refusals, wall

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            response = await self._answer(Request(scope, receive))
        except RefusedError as error:
            response = problem(error.status, error.detail)
        except Exception as error:
            log.exception("a command of Slack failed")
            response = problem(500, describe_failure(error))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        stamp = request.headers.get("x-slack-request-timestamp", "")
        signature = request.headers.get("x-slack-signature", "")
        fault = self._signatures.find_fault(stamp, signature, self._wall())
        if not fault:
            body = await read_body(request, MAX_BODY, lambda size: None)
            fault = self._signatures.accept(stamp, signature, body, self._wall())
        if fault:
            self._refusals.add("bad_signature", client_of(request.scope), time.monotonic())
            return problem(401, fault)
        try:
            async with timeout(ANSWER_S):
                message = await self._answers.answer(_read_command(body))
        except asyncio.TimeoutError:
            message = slack_blocks.message(LATE, [slack_blocks.section(LATE)])
        return JSONResponse({"response_type": "ephemeral", **message})


def _read_command(body: bytes) -> Asked:
    """Return the command in a form. Raises RefusedError."""
    try:
        fields = parse_qs(body.decode("utf-8"), max_num_fields=MAX_FIELDS)
    except (UnicodeDecodeError, ValueError):
        raise RefusedError(400, "the command is not a form") from None

    def first(name: str) -> str:
        return fields.get(name, [""])[0]

    return Asked(
        text=first("text"),
        user=first("user_id"),
        name=first("user_name") or first("user_id"),
        command=first("command") or "/watchtower",
    )
