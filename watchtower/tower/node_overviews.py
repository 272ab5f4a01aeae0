"""The facts about all nodes now, for the page of the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchtower.tower.clock import SteadyWall
from watchtower.tower.node_incidents import WINDOWS
from watchtower.tower.tower import Tower
from watchtower.wire.drills import is_drill


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOverview:
    """One node and its agent."""

    node: str
    has_agent: bool = True
    """Whether an agent reports it or did so until a while ago. Other nodes are listed for their
    incidents."""
    release: str = ""
    """Release of its agent; empty if it is not known."""
    silent_since: float | None
    """UNIX seconds of the last report of a silent agent; None while it reports."""
    report_interval_s: float
    rank_count: int
    jobs: list[str]
    """The jobs of its ranks, by name, at most `MAX_JOBS_OF_NODE`."""
    limits: list[str]
    """Limits of what its agent observes, as sentences."""
    incidents: int
    """Incidents of the last 30 days that the node was to blame for."""
    named: int
    """Incidents of the last 30 days whose verdicts name ranks on the node."""


MAX_JOBS_OF_NODE = 8
"""Jobs that are named for one node. A node has as many GPUs."""


def list_nodes(tower: Tower, wall: SteadyWall) -> list[NodeOverview]:
    """Return all nodes: those with an agent, by name, then others that had incidents."""
    now, detector = tower.clock.now(), tower.detector
    counts = tower.node_incidents.count(WINDOWS["30d"], tower.clock.wall())
    named = tower.node_incidents.count_named(WINDOWS["30d"], tower.clock.wall())
    nodes = []
    for name, node in sorted(tower.fleet.nodes.items()):
        jobs = sorted({job for job, _ in node.ranks}, key=lambda job: (is_drill(job), job))
        is_silent = detector.is_silent(node.reporter, now)
        nodes.append(
            NodeOverview(
                node=name,
                has_agent=True,
                release=node.release,
                silent_since=wall.of(node.seen_at) if is_silent else None,
                report_interval_s=node.reporter.interval_s,
                rank_count=len(node.ranks),
                jobs=jobs[:MAX_JOBS_OF_NODE],
                limits=list(node.gaps.sentences()),
                incidents=counts[name],
                named=named[name],
            )
        )
    return nodes + [
        _without_agent(name, counts[name], named[name])
        for name in sorted(counts.keys() | named.keys())
        if name not in tower.fleet.nodes
    ]


def _without_agent(name: str, incidents: int, named: int) -> NodeOverview:
    return NodeOverview(
        node=name,
        has_agent=False,
        release="",
        silent_since=None,
        report_interval_s=0.0,
        rank_count=0,
        jobs=[],
        limits=[],
        incidents=incidents,
        named=named,
    )


def sort_nodes(nodes: Sequence[NodeOverview]) -> list[NodeOverview]:
    """Return the nodes, the worst first: silent ones, then by incidents, then by gaps."""

    def key(node: NodeOverview) -> tuple[bool, int, int, int, str]:
        incidents = -node.incidents, -node.named
        return node.silent_since is None, *incidents, -len(node.limits), node.node

    return sorted(nodes, key=key)
