"""What several routes have: parameters, the formats of verdicts and documents, and the incident
that a path names.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import Annotated, Any, TypeVar

from fastapi import HTTPException, Path, Query
from pydantic import Field
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from watchtower.alerts.labels import AlertLinks
from watchtower.tower.stored_incidents import find_incident_id
from watchtower.tower.tower import Tower
from watchtower.views.verdict import OwnedVerdict, VerdictView, view_verdict
from watchtower.wire.bounds import MAX_NAME
from watchtower.writing.documents import Document, write_html, write_markdown
from watchtower.writing.verdict_text import (
    About,
    render_markdown,
    render_slack,
    render_slack_blocks,
    render_text,
)

JobName = Annotated[str, Path(description="Name of the job, as /api/v1/jobs lists it.")]

IncidentId = Annotated[
    str,
    Path(
        description="Id of the incident, or the beginning of it. If several incidents begin so, "
        "the answer is 409 and names them."
    ),
]

Limit = Annotated[int, Query(ge=1, le=1000, description="How many items are returned at most.")]

PersonName = Annotated[
    str | None,
    Field(
        max_length=MAX_NAME,
        pattern=r"\S",
        description="Name of the person. It may be left out, but not be empty.",
        examples=["bob"],
    ),
]

WithDrills = Annotated[
    bool, Query(description="Whether jobs of drills, whose names begin with drill:, are listed.")
]


def text_of(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route that answers with text of these media types."""
    return {200: {"content": {kind: {"schema": {"type": "string"}} for kind in kinds}}}


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
        return JSONResponse(render_slack_blocks(verdict, about, find_buttons(owned, links)))
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


_Found = TypeVar("_Found")


async def find_known_id(tower: Tower, incident: str) -> str:
    """Return the id of an incident. Raises HTTPException 404, AmbiguousIdError."""
    return known(await find_incident_id(tower, incident), incident)


def known(found: _Found | None, incident: str) -> _Found:
    """Return `found`. Raises HTTPException 404 if it is None."""
    if found is None:
        raise HTTPException(404, f"there is no incident {incident!r}")
    return found
