"""A verdict in the requested format."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated

from fastapi import Query
from starlette.responses import PlainTextResponse, Response

from watchtower.core.verdict_text import render_markdown, render_slack, render_text
from watchtower.wire.verdict import Verdict


class VerdictFormat(StrEnum):
    """How a verdict is written."""

    JSON = "json"
    TEXT = "text"
    MARKDOWN = "markdown"
    SLACK = "slack"


Format = Annotated[
    VerdictFormat,
    Query(alias="format", description="How the verdict is written: for programs or for people."),
]


def _render_now(verdict: Verdict) -> str:
    return render_text(verdict, time.time())


_RENDERERS = {
    VerdictFormat.TEXT: (_render_now, "text/plain"),
    VerdictFormat.MARKDOWN: (render_markdown, "text/markdown"),
    VerdictFormat.SLACK: (render_slack, "text/plain"),
}


def write_verdict(verdict: Verdict, shape: VerdictFormat) -> Response:
    """Write a verdict for a chat or a terminal."""
    render, media_type = _RENDERERS[shape]
    return PlainTextResponse(render(verdict), media_type=media_type)
