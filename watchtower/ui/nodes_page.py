"""The page of the nodes: what it shows, from what the tower knows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchtower.tower.node_overviews import NodeOverview, sort_nodes
from watchtower.ui.words import stamp

MAX_NODES = 300
"""Nodes on the page, those with trouble first: about 100 kB. The others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShown:
    """One node."""

    node: str
    has_agent: bool
    release: str
    silent_since: str | None
    ranks: int
    jobs: list[str]
    limits: list[str]
    incidents: int
    """Incidents that the node is to blame for."""
    named: int
    """Incidents that name its ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesShown:
    """The content of the page."""

    reporting: int
    silent: int
    limited: int
    """Reporting agents that cannot observe everything."""
    nodes: list[NodeShown]
    hidden: int


def show_nodes(nodes: Sequence[NodeOverview]) -> NodesShown:
    """Return what the page shows."""
    silent = sum(each.silent_since is not None for each in nodes)
    return NodesShown(
        reporting=sum(each.has_agent for each in nodes) - silent,
        silent=silent,
        limited=sum(each.silent_since is None and bool(each.limits) for each in nodes),
        nodes=[_show(each) for each in sort_nodes(nodes)[:MAX_NODES]],
        hidden=max(0, len(nodes) - MAX_NODES),
    )


def _show(node: NodeOverview) -> NodeShown:
    return NodeShown(
        node=node.node,
        has_agent=node.has_agent,
        release=node.release,
        silent_since=stamp(node.silent_since),
        ranks=node.rank_count,
        jobs=node.jobs,
        limits=node.limits,
        incidents=node.incidents,
        named=node.named,
    )
