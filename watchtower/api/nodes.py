"""Routes about nodes and their agents."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from watchtower.api import examples, openapi
from watchtower.api.parameters import Limit, WithDrills, answer
from watchtower.tower.node_lists import NodeList, view_nodes
from watchtower.tower.tower import Tower
from watchtower.tower.unwatched import UnwatchedList, list_unwatched
from watchtower.tower.views import AgentList
from watchtower.tower.views import list_agents as view_agents
from watchtower.wire.bounds import MAX_NAME

OfJob = Annotated[str | None, Query(description="Only processes of this job.", max_length=MAX_NAME)]


def node_routes(tower: Tower) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter(prefix="/api/v1", tags=[openapi.NODES])

    @router.get("/nodes", responses=answer(examples.NODES, "Nodes, the worst first"))
    async def list_nodes(limit: Limit = 100) -> NodeList:
        """List the nodes with their agents and their incidents of the last 30 days, worst first.

        An incident counts for a node if all ranks that the verdict names are on it, and if the
        verdict says to call those of nodes, GPUs or the network. Nodes without an agent are listed
        if they had such incidents.
        """
        return view_nodes(tower, limit)

    @router.get("/unwatched", responses=answer(examples.UNWATCHED, "What is not watched"))
    async def get_unwatched(job: OfJob = None, drills: WithDrills = False) -> UnwatchedList:
        """List the processes that seem to be ranks and are not watched, with the reason.

        Every process that an agent recognizes as a rank is either a rank of a job or listed here.
        """
        return list_unwatched(tower, job, drills=drills)

    @router.get("/agents", responses=answer(examples.AGENTS, "Connected agents"), deprecated=True)
    async def list_agents(limit: Limit = 100) -> AgentList:
        """List the agents that report now, by node. Use /api/v1/nodes: the next release has only
        that one."""
        return view_agents(tower, limit)

    return router
