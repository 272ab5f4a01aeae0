"""Routes about incidents, open and past."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from watchtower.alerts.labels import NO_LINKS, AlertLinks
from watchtower.api import examples, openapi
from watchtower.api.incident_lookup import find_known_id, known
from watchtower.api.incident_query import IncidentQuery
from watchtower.api.parameters import IncidentId, PersonName, answer
from watchtower.api.rendering import (
    Format,
    VerdictFormat,
    write_for_people,
)
from watchtower.tower import incident_views
from watchtower.tower.acks import AckView, view_ack
from watchtower.tower.incident_series import IncidentSeries, find_series
from watchtower.tower.incident_verdicts import owned_verdict
from watchtower.tower.incident_views import IncidentDetail, IncidentList
from watchtower.tower.similar_incidents import MAX_FOUND, SimilarList, find_similar
from watchtower.tower.tower import Tower
from watchtower.wire.bounds import MAX_TEXT

SimilarLimit = Annotated[
    int, Query(ge=1, le=MAX_FOUND, description="How many items are returned at most.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AckRequest:
    """The person who works on an incident."""

    by: PersonName = None
    note: Annotated[
        str,
        Field(
            max_length=MAX_TEXT,
            description="Text shown with the incident.",
            examples=["checking NFS"],
        ),
    ] = ""


def incident_routes(tower: Tower, links: AlertLinks = NO_LINKS) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter(prefix="/api/v1/incidents", tags=[openapi.INCIDENTS])

    @router.get("", responses=answer(examples.INCIDENTS, "Incidents, newest first"))
    async def list_incidents(asked: Annotated[IncidentQuery, Query()]) -> IncidentList:
        """List incidents that meet all given conditions, newest first.

        If there are more, the answer has a cursor for the next page. Incidents that open in the
        meantime do not change the pages that follow.
        """
        return await incident_views.list_incidents(tower, asked.as_filter(), asked.limit)

    @router.get(
        "/{incident}",
        response_model=IncidentDetail,
        responses=answer(
            examples.INCIDENT_DETAIL, "The incident, in the format asked for", examples.TEXTS
        ),
    )
    async def get_incident(
        incident: IncidentId, shape: Format = VerdictFormat.JSON
    ) -> IncidentDetail | Response:
        """Return an incident with its verdict and the stacks that it was made from."""
        ident = await find_known_id(tower, incident)
        if shape is VerdictFormat.JSON:
            return known(await incident_views.get_incident(tower, ident), incident)
        verdict = await owned_verdict(tower, ident)
        return write_for_people(known(verdict, incident), shape, links)

    @router.get(
        "/{incident}/similar",
        responses=answer(examples.SIMILAR, "Earlier incidents with the same node, line or cause"),
    )
    async def list_similar(incident: IncidentId, limit: SimilarLimit = 10) -> SimilarList:
        """List earlier incidents with the same node, line or cause, newest first.

        If there are more, those with the most in common are listed. Incidents of drills are
        compared with drills only.
        """
        ident = await find_known_id(tower, incident)
        return known(await find_similar(tower, ident, limit), incident)

    @router.get(
        "/{incident}/series",
        responses=answer(examples.INCIDENT_SERIES, "The series, suspects first"),
    )
    async def get_series(incident: IncidentId) -> IncidentSeries:
        """Return what the suspects and a few healthy ranks did in the 15 minutes before."""
        ident = await find_known_id(tower, incident)
        return known(await find_series(tower, ident), incident)

    @router.post("/{incident}/ack", responses=answer(examples.ACK, "The acknowledgement"))
    async def ack_incident(incident: IncidentId, request: AckRequest) -> AckView:
        """Acknowledge an incident: its alert ends, the incident stays open."""
        ident = await find_known_id(tower, incident)
        ack = await tower.acks.ack(ident, request.by or "", request.note)
        return view_ack(known(ack, incident))

    return router
