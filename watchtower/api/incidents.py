"""Routes about incidents, open and past."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from starlette.responses import Response

from watchtower.api.rendering import Format, VerdictFormat, write_verdict
from watchtower.tower import history
from watchtower.tower.acks import AckView, view_ack
from watchtower.tower.export import export_incident
from watchtower.tower.history import IncidentDetail, IncidentSummary
from watchtower.tower.tower import Tower


@dataclass(frozen=True, slots=True, kw_only=True)
class AckRequest:
    """Who handles an incident."""

    by: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentList:
    """Incidents, newest first."""

    items: list[IncidentSummary]


def incident_routes(tower: Tower) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter(prefix="/api/v1/incidents")

    @router.get("")
    async def list_incidents(
        job: str | None = None, limit: Annotated[int, Query(ge=1, le=1000)] = 100
    ) -> IncidentList:
        """List incidents, newest first."""
        return IncidentList(items=await history.list_incidents(tower, job, limit))

    @router.get("/{incident}", response_model=IncidentDetail)
    async def get_incident(
        incident: str, shape: Format = VerdictFormat.JSON
    ) -> IncidentDetail | Response:
        """Show an incident with its verdict and the stacks it was concluded from."""
        detail = await history.get_incident(tower, incident)
        if detail is None:
            raise HTTPException(404, _unknown(incident))
        return detail if shape is VerdictFormat.JSON else write_verdict(detail.verdict, shape)

    @router.get("/{incident}/export", response_class=Response)
    async def export(incident: str) -> Response:
        """Hand out everything the incident was concluded from: `watchtower replay` reads it."""
        body = await export_incident(tower, incident)
        if body is None:
            raise HTTPException(404, _unknown(incident))
        return Response(body, media_type="application/json")

    @router.post("/{incident}/ack")
    async def ack_incident(incident: str, said: AckRequest) -> AckView:
        """Acknowledge the incident: alert rules then leave it out."""
        jobs = list(tower.live.values())
        ack = await tower.acks.ack(incident, said.by, said.note, jobs)
        if ack is None:
            raise HTTPException(404, _unknown(incident))
        return view_ack(ack)

    return router


def _unknown(incident: str) -> str:
    return f"there is no incident {incident!r}; see /api/v1/incidents"
