"""Verdicts and documents in the requested format."""

from __future__ import annotations

import time
from enum import Enum
from typing import Annotated

from fastapi import Query
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from watchtower.alerts.labels import AlertLinks
from watchtower.tower.owners import OwnedVerdict
from watchtower.tower.views import VerdictView, view_verdict
from watchtower.writing.documents import Document, write_html, write_markdown
from watchtower.writing.verdict_blocks import make_message
from watchtower.writing.verdict_text import About, render_markdown, render_slack, render_text


class VerdictFormat(Enum):
    """How a verdict is written."""

    JSON = "json"
    TEXT = "text"
    MARKDOWN = "markdown"
    SLACK = "slack"
    SLACK_BLOCKS = "slack-blocks"


Format = Annotated[
    VerdictFormat,
    Query(
        alias="format",
        description="How the verdict is written: for programs, for people, or as a message that "
        "Slack accepts (`slack-blocks`).",
    ),
]


class DocumentShape(Enum):
    """How a document is written."""

    MARKDOWN = "markdown"
    HTML = "html"


DocumentFormat = Annotated[
    DocumentShape, Query(alias="format", description="How the document is written.")
]

ONLY_ITSELF = "default-src 'none'; img-src data:"
"""Content-Security-Policy of a document: it loads and runs nothing, and contains its drawing."""


def write_document(document: Document, shape: DocumentShape) -> Response:
    """Write a document."""
    if shape is DocumentShape.HTML:
        headers = {"Content-Security-Policy": ONLY_ITSELF}
        return HTMLResponse(write_html(document), headers=headers)
    return PlainTextResponse(write_markdown(document), media_type="text/markdown")


def write_verdict(
    owned: OwnedVerdict, shape: VerdictFormat, links: AlertLinks
) -> VerdictView | Response:
    """Write a verdict in a format. `links` are the addresses for people."""
    verdict = owned.verdict
    if shape is VerdictFormat.JSON:
        return view_verdict(verdict)
    return write_for_people(owned, shape, links)


def write_for_people(owned: OwnedVerdict, shape: VerdictFormat, links: AlertLinks) -> Response:
    """Write a verdict for a chat or a terminal."""
    verdict, about = owned.verdict, about_verdict(owned, links)
    if shape is VerdictFormat.SLACK_BLOCKS:
        return JSONResponse(make_message(verdict, about, find_buttons(owned, links)))
    if shape is VerdictFormat.MARKDOWN:
        return PlainTextResponse(render_markdown(verdict, about), media_type="text/markdown")
    if shape is VerdictFormat.SLACK:
        return PlainTextResponse(render_slack(verdict, about))
    return PlainTextResponse(render_text(verdict, time.time(), about))


def about_verdict(owned: OwnedVerdict, links: AlertLinks) -> About:
    """Return the owner of a verdict's job, and the address of its incident."""
    incident = owned.verdict.incident
    return About(owner=owned.owner, link=links.details(incident) if incident else "")


def find_buttons(owned: OwnedVerdict, links: AlertLinks) -> dict[str, str]:
    """Return the addresses about a verdict, by the text of their buttons."""
    incident = owned.verdict.incident
    if not incident:
        return {}
    found = {"Details": links.details(incident), "Dashboard": links.dashboard(incident)}
    return {text: url for text, url in found.items() if url}
