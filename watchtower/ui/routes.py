"""The routes of the pages."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from watchtower.tower import history
from watchtower.tower.incident_ids import find_incident_id
from watchtower.tower.tower import Tower
from watchtower.tower.views import summarize_jobs
from watchtower.ui.pages import Pages, Shown
from watchtower.ui.parts import fill_parts


def page_routes(tower: Tower) -> list[Route]:
    """Routes of one tower."""
    pages = Pages()

    async def get_fleet(request: Request) -> Response:
        async def collect() -> Shown:
            return Shown(template="fleet.html", values={"jobs": summarize_jobs(tower)})

        return await pages.answer(request, "fleet", collect)

    async def get_incident(request: Request) -> Response:
        wanted = request.path_params["incident"]

        async def collect() -> Shown:
            ident = await find_incident_id(tower, wanted)
            incident = await history.get_incident(tower, ident) if ident else None
            if incident is None:
                raise HTTPException(404, f"there is no incident {wanted!r}")
            parts = await fill_parts(tower, incident)
            return Shown(template="incident.html", values={"incident": incident, "parts": parts})

        return await pages.answer(request, "incident", collect)

    return [
        Route("/", get_fleet),
        Route("/incidents/{incident}", get_incident),
        pages.static.route(),
    ]
