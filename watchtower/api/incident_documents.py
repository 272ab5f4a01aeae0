"""Routes of the documents about an incident: its export and its post-mortem."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from watchtower.alerts.labels import NO_LINKS, AlertLinks
from watchtower.api import examples, openapi
from watchtower.api.incident_lookup import find_known_id, known
from watchtower.api.parameters import IncidentId, answer, answer_text
from watchtower.api.rendering import DocumentFormat, DocumentShape, write_document
from watchtower.tower.export import export_incident
from watchtower.tower.postmortems import make_postmortem
from watchtower.tower.redacted_export import redact_export
from watchtower.tower.tower import Tower

Redact = Annotated[
    bool,
    Query(description="Whether names of jobs, nodes, users, paths and programs are replaced."),
]


def document_routes(tower: Tower, links: AlertLinks = NO_LINKS) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter(prefix="/api/v1/incidents", tags=[openapi.INCIDENTS])
    redacting = asyncio.Lock()

    @router.get(
        "/{incident}/export",
        response_model=dict[str, Any],
        responses=answer(examples.EXPORT, "The incident with its case and its dumps"),
    )
    async def export(incident: IncidentId, redact: Redact = False) -> Response:
        """Return everything that the verdict was made from. `watchtower replay` reads it."""
        body = known(await export_incident(tower, await find_known_id(tower, incident)), incident)
        if redact:
            # A large export takes seconds, so that it is redacted in a thread, one at a time:
            # several threads would delay the replies to agents.
            async with redacting:
                body = await asyncio.to_thread(redact_export, body)
        return Response(body, media_type="application/json")

    @router.get(
        "/{incident}/postmortem",
        response_class=Response,
        responses=answer_text(examples.POSTMORTEM, "The post-mortem"),
    )
    async def get_postmortem(
        incident: IncidentId, shape: DocumentFormat = DocumentShape.MARKDOWN
    ) -> Response:
        """Return the post-mortem of an incident: what happened, why, and how to prevent it.

        It stays true after the end of the job. If retention has deleted the evidence, it says so.
        """
        ident = await find_known_id(tower, incident)
        found = await make_postmortem(tower, ident, links.details(ident))
        return write_document(known(found, incident), shape)

    return router
