"""Routes about nodes and their agents, and whether the tower is alive and can detect hangs."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from watchtower.api import openapi
from watchtower.api.answers import Limit, WithDrills
from watchtower.api.visitors import visitor_of
from watchtower.tower.health import Health, check_health
from watchtower.tower.tower import Tower
from watchtower.views.advisories import AdvisoryList
from watchtower.views.advisories import list_advisories as view_advisories
from watchtower.views.node import NodeList, UnwatchedList, list_unwatched, view_nodes
from watchtower.wire.bounds import MAX_NAME

OfJob = Annotated[str | None, Query(description="Only processes of this job.", max_length=MAX_NAME)]

OfJobWithNodes = Annotated[
    str, Query(description="Only of this job and its nodes.", max_length=MAX_NAME)
]
OfNode = Annotated[str, Query(description="Only of this node.", max_length=MAX_NAME)]


def node_routes(tower: Tower) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter(prefix="/api/v1", tags=[openapi.NODES])

    @router.get("/nodes")
    async def list_nodes(limit: Limit = 100) -> NodeList:
        """List the nodes with their agents and their incidents of the last 30 days, worst first.

        An incident counts for a node if all ranks that the verdict names are on it, and if the
        verdict says to call those of nodes, GPUs or the network. Nodes without an agent are listed
        if they had such incidents.
        """
        moment = tower.moment()
        return view_nodes(moment, tower.node_incidents.of_30_days(moment.wall), limit)

    @router.get("/unwatched")
    async def get_unwatched(job: OfJob = None, drills: WithDrills = False) -> UnwatchedList:
        """List the processes that seem to be ranks and are not watched, with the reason.

        Every process that an agent recognizes as a rank is either a rank of a job or listed here.
        """
        return list_unwatched(tower.moment(), job, drills=drills)

    @router.get("/advisories")
    async def list_advisories(
        job: OfJobWithNodes = "", node: OfNode = "", drills: WithDrills = False, limit: Limit = 100
    ) -> AdvisoryList:
        """List what is wrong with jobs and nodes although no job hangs, the worst first.

        No incident opens for an advisory. docs/advisories.md describes each of them.
        """
        return view_advisories(tower.moment(), job, node, limit=limit, drills=drills)

    return router


def health_routes(tower: Tower) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter(tags=[openapi.TOWER])

    @router.get("/healthz")
    async def get_healthz() -> dict[str, str]:
        """Return that the process answers. Needs no token."""
        return {"status": "alive"}

    unable = {"model": Health, "description": "The tower cannot decide; `detail` has the reason"}

    @router.get("/readyz", responses={503: unable})
    async def get_readyz(request: Request, response: Response) -> Health:
        """Return whether the tower can decide, and for readers what agents cannot do.

        Needs no token. The names of nodes are shown only with a token of a reader.
        """
        health = check_health(tower)
        if not visitor_of(request.scope).may_read:
            # Limits name nodes. Without a token only their existence is shown.
            hidden = ["a reader's token shows them"]
            limits, notes = health.limits and hidden, health.notes and hidden
            unwatched = replace(health.unwatched, items=[])
            health = replace(health, limits=limits, notes=notes, unwatched=unwatched)
        response.status_code = 200 if health.ready else 503
        return health

    return router
