"""Is the tower alive, and can it decide?"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

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
    async def get_readyz(response: Response) -> Health:
        """Say whether the tower can decide, and what its agents cannot do."""
        health = check_health(tower)
        response.status_code = 200 if health.ready else 503
        return health

    return router
