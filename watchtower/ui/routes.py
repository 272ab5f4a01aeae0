"""The routes of the pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from watchtower.alerts.labels import NO_LINKS, AlertLinks
from watchtower.api.answers import find_known_id, known
from watchtower.api.jobs import PAGES, known_job
from watchtower.incidents.incident_filter import IncidentFilter
from watchtower.tower.health import check_health
from watchtower.tower.stored_incidents import find_incident_overview, list_incidents
from watchtower.tower.tower import Tower
from watchtower.ui.incident_page import show_incident
from watchtower.ui.job_page import show_job
from watchtower.ui.lists import (
    FIELDS,
    JOB_FIELDS,
    MAX_OUTAGES,
    check_choice,
    make_filter,
    read_address,
    show_fleet,
    show_incidents,
    show_nodes,
)
from watchtower.ui.pages import Pages, Shown
from watchtower.ui.parts import JOB_PARTS, MAX_ADVISORIES, PARTS, fill_parts
from watchtower.ui.settings import PageSettings
from watchtower.views.advisories import list_advisories
from watchtower.views.fleet import list_fleet
from watchtower.views.job import find_job_overview
from watchtower.views.node import list_nodes
from watchtower.views.outage import list_outages

DEFAULTS = PageSettings()

LISTED = 100
"""Incidents in the list."""

LISTED_OF_JOB = 20
"""Incidents on the page of their job."""

OVER_FRESH_S = 5.0
"""Seconds for which a page of a closed incident is used again, if no event of an incident comes."""


class _Collector:
    """Collects what the pages of one tower show."""

    def __init__(self, tower: Tower, links: AlertLinks, settings: PageSettings) -> None:
        self._tower, self._links, self._settings = tower, links, settings

    async def fleet(self, chosen: Mapping[str, str]) -> Shown:
        check_choice(chosen)
        moment = self._tower.moment()
        outages = list_outages(moment, MAX_OUTAGES)
        advised = list_advisories(moment, limit=MAX_ADVISORIES)
        health = check_health(self._tower)
        page = show_fleet(list_fleet(moment), outages, health, advised, chosen)
        return Shown(template="fleet.html", values={"page": page})

    async def nodes(self) -> Shown:
        moment = self._tower.moment()
        incidents = self._tower.node_incidents.of_30_days(moment.wall)
        advised = list_advisories(moment, jobs=False, limit=MAX_ADVISORIES)
        page = show_nodes(list_nodes(moment, incidents), advised)
        return Shown(template="nodes.html", values={"page": page})

    async def incidents(self, chosen: Mapping[str, str]) -> Shown:
        found = await list_incidents(self._tower, make_filter(chosen), LISTED)
        return Shown(template="incidents.html", values={"page": show_incidents(found, chosen)})

    async def job(self, name: str) -> Shown:
        overview = find_job_overview(self._tower.moment(), name)
        chosen = IncidentFilter(job=name)
        incidents = (await list_incidents(self._tower, chosen, LISTED_OF_JOB)).items
        if overview is None:
            known_job(incidents or None, name)
            return Shown(template="past_job.html", values={"job": name, "incidents": incidents})
        parts = await fill_parts(self._tower, overview, JOB_PARTS)
        page = show_job(overview, incidents)
        return Shown(template="job.html", values={"page": page, "parts": parts})

    async def incident(self, wanted: str) -> Shown:
        tower, before = self._tower, self._tower.feed.count
        ident = await find_known_id(tower, wanted)
        overview = known(await find_incident_overview(tower, ident), wanted)
        page = show_incident(overview, self._links, self._settings.links, tower.clock.wall())
        parts = await fill_parts(tower, overview, PARTS)
        values = {"page": page, "parts": parts}
        if not overview.is_over:
            return Shown(template="incident.html", values=values)
        return Shown(
            template="incident.html",
            values=values,
            fresh_s=OVER_FRESH_S,
            is_fresh=lambda: tower.feed.count == before,
        )


def page_routes(
    tower: Tower,
    pages: Pages,
    links: AlertLinks = NO_LINKS,
    settings: PageSettings = DEFAULTS,
) -> list[Route]:
    """Routes of one tower. Those of jobs need the middleware `RawJobPaths`."""
    collector = _Collector(tower, links, settings)

    def plain(path: str, collect: Callable[[], Awaitable[Shown]]) -> Route:
        async def get(request: Request) -> Response:
            return await pages.answer(request, path, collect)

        return Route(path, get)

    def about(path: str, name: str, collect: Callable[[str], Awaitable[Shown]]) -> Route:
        async def get(request: Request) -> Response:
            return await pages.answer(request, path, partial(collect, request.path_params[name]))

        return Route(path, get)

    def chosen(
        path: str, fields: Sequence[str], collect: Callable[[Mapping[str, str]], Awaitable[Shown]]
    ) -> Route:
        async def get(request: Request) -> Response:
            given = read_address(request.query_params, fields)
            name = f"{path}?{sorted(given.items())}"
            return await pages.answer(request, name, partial(collect, given))

        return Route(path, get)

    return [
        chosen("/", JOB_FIELDS, collector.fleet),
        plain("/nodes", collector.nodes),
        chosen("/incidents", FIELDS, collector.incidents),
        about("/incidents/{incident}", "incident", collector.incident),
        about(f"{PAGES}/{{job:job}}", "job", collector.job),
        pages.static.route(),
    ]
