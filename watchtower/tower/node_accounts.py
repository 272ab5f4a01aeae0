"""What is known of all nodes now, for the page of the nodes."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.tower.clock import SteadyWall
from watchtower.tower.node_incidents import WINDOWS
from watchtower.tower.tower import Tower
from watchtower.wire.drills import is_drill


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAccount:
    """One node and its agent."""

    node: str
    silent_since: float | None
    """UNIX seconds of the last report of a silent agent; None while it reports."""
    report_interval_s: float
    rank_count: int
    jobs: list[str]
    """The jobs of its ranks, by name, at most `MAX_JOBS_OF_NODE`."""
    limits: list[str]
    """What its agent cannot observe, as sentences."""
    incidents: int
    """Incidents of the last 30 days that the node was to blame for."""


MAX_JOBS_OF_NODE = 8
"""Jobs that are named for one node. A node has as many GPUs."""


def list_nodes(tower: Tower, wall: SteadyWall) -> list[NodeAccount]:
    """Return all nodes, by name."""
    now, detector = tower.clock.now(), tower.detector
    counts = tower.node_incidents.count(WINDOWS["30d"], tower.clock.wall())
    nodes = []
    for name, node in sorted(tower.fleet.nodes.items()):
        jobs = sorted({job for job, _ in node.ranks}, key=lambda job: (is_drill(job), job))
        is_silent = detector.is_silent(node.reporter, now)
        nodes.append(
            NodeAccount(
                node=name,
                silent_since=wall.of(node.seen_at) if is_silent else None,
                report_interval_s=node.reporter.interval_s,
                rank_count=len(node.ranks),
                jobs=jobs[:MAX_JOBS_OF_NODE],
                limits=list(node.gaps.sentences()),
                incidents=counts[name],
            )
        )
    return nodes
