"""Routes that report whether the tower is alive, and whether it can detect hangs."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from watchtower.api import examples, openapi
from watchtower.api.parameters import answer
from watchtower.api.visitors import visitor_of
from watchtower.tower.health import Health, check_health
from watchtower.tower.tower import Tower


def health_routes(tower: Tower) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter(tags=[openapi.TOWER])

    @router.get("/healthz", responses=answer(examples.ALIVE, "The process answers"))
    async def get_healthz() -> dict[str, str]:
        """Return that the process answers. Needs no token."""
        return {"status": "alive"}

    able = answer(examples.HEALTH, "The tower can decide")
    unable = {"model": Health, "description": "The tower cannot decide; `detail` has the reason"}

    @router.get("/readyz", responses={**able, 503: unable})
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
