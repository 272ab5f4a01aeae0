"""Routes about outages."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter

from watchtower.api import examples, openapi
from watchtower.api.parameters import Limit, answer
from watchtower.tower.outage_views import OutageView
from watchtower.tower.outage_views import list_outages as view_outages
from watchtower.tower.tower import Tower


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageList:
    """Outages, newest first."""

    items: list[OutageView]


def outage_routes(tower: Tower) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter(prefix="/api/v1/outages", tags=[openapi.INCIDENTS])

    @router.get("", responses=answer(examples.OUTAGES, "Outages, newest first"))
    async def list_outages(limit: Limit = 100) -> OutageList:
        """List the outages of live jobs, newest first.

        An outage is two or more incidents with one shared cause that opened within two minutes.
        """
        return OutageList(items=view_outages(tower, limit))

    return router
