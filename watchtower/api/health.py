"""Is the tower alive, and can it decide?"""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from watchtower.api.security import MAY_READ
from watchtower.tower.health import Health, check_health
from watchtower.tower.tower import Tower


def health_routes(tower: Tower) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter()

    @router.get("/healthz")
    async def get_healthz() -> dict[str, str]:
        """Say that the process answers."""
        return {"status": "alive"}

    @router.get("/readyz", responses={503: {"model": Health}})
    async def get_readyz(request: Request, response: Response) -> Health:
        """Say whether the tower can decide; to readers also what its agents cannot do."""
        health = check_health(tower)
        if not request.scope.get(MAY_READ):
            # Limits name nodes; who asks without a token learns only that there are some.
            shown = ["a reader's token shows them"] if health.limits else []
            health = replace(health, limits=shown)
        response.status_code = 200 if health.ready else 503
        return health

    return router
