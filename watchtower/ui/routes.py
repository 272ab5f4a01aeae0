"""The routes of the pages."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from watchtower.alerts.links import NO_LINKS, AlertLinks
from watchtower.tower.clock import SteadyWall
from watchtower.tower.incident_accounts import find_incident_account
from watchtower.tower.incident_ids import find_incident_id
from watchtower.tower.tower import Tower
from watchtower.tower.views import summarize_jobs
from watchtower.ui.incident_page import show_incident
from watchtower.ui.pages import Pages, Shown
from watchtower.ui.parts import fill_parts
from watchtower.ui.settings import PageSettings

DEFAULTS = PageSettings()


def page_routes(
    tower: Tower, links: AlertLinks = NO_LINKS, settings: PageSettings = DEFAULTS
) -> list[Route]:
    """Routes of one tower."""
    pages, wall = Pages(), SteadyWall(tower.clock)

    async def get_fleet(request: Request) -> Response:
        async def collect() -> Shown:
            return Shown(template="fleet.html", values={"jobs": summarize_jobs(tower)})

        return await pages.answer(request, "fleet", collect)

    async def get_incident(request: Request) -> Response:
        wanted = request.path_params["incident"]

        async def collect() -> Shown:
            ident = await find_incident_id(tower, wanted)
            account = await find_incident_account(tower, wall, ident) if ident else None
            if account is None:
                raise HTTPException(404, f"there is no incident {wanted!r}")
            shown = show_incident(account, links, settings.links)
            parts = await fill_parts(tower, account)
            return Shown(template="incident.html", values={"page": shown, "parts": parts})

        return await pages.answer(request, "incident", collect)

    return [
        Route("/", get_fleet),
        Route("/incidents/{incident}", get_incident),
        pages.static.route(),
    ]
