"""Routes about incidents, open and past."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import APIRouter, HTTPException, Query
from pydantic import Field
from starlette.responses import Response

from watchtower.api import examples
from watchtower.api.parameters import IncidentId, Limit, WithDrills, answer
from watchtower.api.rendering import Format, VerdictFormat, write_verdict
from watchtower.tower import history
from watchtower.tower.acks import AckView, view_ack
from watchtower.tower.export import export_incident
from watchtower.tower.history import IncidentDetail, IncidentSummary
from watchtower.tower.incident_ids import find_incident_id
from watchtower.tower.incident_series import IncidentSeries, find_series
from watchtower.tower.tower import Tower
from watchtower.wire.bounds import MAX_NAME, MAX_TEXT

_Found = TypeVar("_Found")

OfJob = Annotated[str | None, Query(description="Only incidents of the job with this name.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class AckRequest:
    """The person who works on an incident."""

    by: Annotated[
        str, Field(max_length=MAX_NAME, description="Name of the person.", examples=["bob"])
    ] = ""
    note: Annotated[
        str,
        Field(
            max_length=MAX_TEXT,
            description="Text shown with the incident.",
            examples=["checking NFS"],
        ),
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentList:
    """Incidents, newest first."""

    items: list[IncidentSummary]


def incident_routes(tower: Tower) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter(prefix="/api/v1/incidents")

    @router.get("", responses=answer(examples.INCIDENTS, "Incidents, newest first"))
    async def list_incidents(
        job: OfJob = None, limit: Limit = 100, drills: WithDrills = False
    ) -> IncidentList:
        """List incidents, newest first."""
        with_drills = drills or job is not None
        items = await history.list_incidents(tower, job, limit, with_drills)
        return IncidentList(items=items)

    @router.get(
        "/{incident}",
        response_model=IncidentDetail,
        responses=answer(examples.INCIDENT_DETAIL, "The incident, in the format asked for"),
    )
    async def get_incident(
        incident: IncidentId, shape: Format = VerdictFormat.JSON
    ) -> IncidentDetail | Response:
        """Return an incident with its verdict and the stacks that it was made from."""
        ident = await _find(tower, incident)
        if shape is VerdictFormat.JSON:
            return _known(await history.get_incident(tower, ident), incident)
        verdict = await history.incident_verdict(tower, ident)
        return write_verdict(_known(verdict, incident), shape)

    @router.get(
        "/{incident}/export",
        response_class=Response,
        responses=answer(examples.EXPORT, "The incident with its case and its dumps"),
    )
    async def export(incident: IncidentId) -> Response:
        """Return everything that the verdict was made from. `watchtower replay` reads it."""
        body = await export_incident(tower, await _find(tower, incident))
        return Response(_known(body, incident), media_type="application/json")

    @router.get(
        "/{incident}/series",
        responses=answer(examples.INCIDENT_SERIES, "The series, suspects first"),
    )
    async def get_series(incident: IncidentId) -> IncidentSeries:
        """Return what the suspects and a few healthy ranks did in the 15 minutes before."""
        return _known(await find_series(tower, await _find(tower, incident)), incident)

    @router.post("/{incident}/ack", responses=answer(examples.ACK, "The acknowledgement"))
    async def ack_incident(incident: IncidentId, request: AckRequest) -> AckView:
        """Acknowledge an incident: its alert ends, the incident stays open."""
        jobs = list(tower.live.values())
        ident = await _find(tower, incident)
        ack = await tower.acks.ack(ident, request.by, request.note, jobs)
        return view_ack(_known(ack, incident))

    return router


async def _find(tower: Tower, incident: str) -> str:
    """Return the id of an incident. Raises HTTPException 404, AmbiguousIdError."""
    return _known(await find_incident_id(tower, incident), incident)


def _known(found: _Found | None, incident: str) -> _Found:
    """Return `found`. Raises HTTPException 404 if it is None."""
    if found is None:
        raise HTTPException(404, f"there is no incident {incident!r}")
    return found
