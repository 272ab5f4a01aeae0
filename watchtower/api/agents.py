"""Routes about agents."""

from __future__ import annotations

from fastapi import APIRouter

from watchtower.api import examples
from watchtower.api.parameters import Limit, answer
from watchtower.tower.tower import Tower
from watchtower.tower.views import AgentList
from watchtower.tower.views import list_agents as view_agents


def agent_routes(tower: Tower) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter(prefix="/api/v1/agents")

    @router.get("", responses=answer(examples.AGENTS, "Connected agents"))
    async def list_agents(limit: Limit = 100) -> AgentList:
        """List the agents that report now, by node, with the number of ranks that each watches."""
        return view_agents(tower, limit)

    return router
