"""All nodes as the API returns them, the worst first."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.tower.clock import SteadyWall
from watchtower.tower.node_overviews import NodeOverview, list_nodes, sort_nodes
from watchtower.tower.tower import Tower


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSummary:
    """One node, its agent and its incidents."""

    node: str
    has_agent: bool
    """Whether an agent has reported since the tower was started, and was not dropped."""
    is_silent: bool
    """Whether the agent has stopped reporting."""
    silent_for_s: float | None
    """Seconds since the last report; null without an agent."""
    release: str
    """Release of the agent; empty if the agent does not report it."""
    rank_count: int
    """Number of ranks that it monitors."""
    job_names: list[str]
    """Jobs of these ranks, at most 8."""
    limits: list[str]
    """Limits of what the agent observes, as sentences."""
    incident_count: int
    """Incidents of the last 30 days that the node was to blame for: the node, a GPU or the network
    had to be repaired."""
    named_count: int
    """Incidents of the last 30 days whose verdicts name ranks on the node, whatever the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeList:
    """Nodes, the worst first: silent ones, then by incidents, then by limits."""

    items: list[NodeSummary]
    connected: int
    """Number of agents that report, also of those that `limit` leaves out."""
    silent: int
    """Number of agents that stopped reporting."""
    rank_count: int
    """Number of ranks that reporting agents monitor."""


def view_nodes(tower: Tower, limit: int) -> NodeList:
    """Return at most `limit` nodes, and the numbers of all nodes."""
    nodes = list_nodes(tower, SteadyWall(tower.clock))
    silent = sum(each.silent_since is not None for each in nodes)
    reporting = [each for each in nodes if each.has_agent and each.silent_since is None]
    return NodeList(
        items=[_view(tower, each) for each in sort_nodes(nodes)[:limit]],
        connected=len(reporting),
        silent=silent,
        rank_count=sum(each.rank_count for each in reporting),
    )


def _view(tower: Tower, overview: NodeOverview) -> NodeSummary:
    node = tower.fleet.nodes.get(overview.node)
    return NodeSummary(
        node=overview.node,
        has_agent=overview.has_agent,
        is_silent=overview.silent_since is not None,
        silent_for_s=round(tower.clock.now() - node.seen_at, 2) if node else None,
        release=overview.release,
        rank_count=overview.rank_count,
        job_names=overview.jobs,
        limits=overview.limits,
        incident_count=overview.incidents,
        named_count=overview.named,
    )
