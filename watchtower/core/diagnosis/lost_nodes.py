"""Nodes that stopped reporting, with their ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchtower.core.case import NodeEvidence, Presence
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position

EARLY_REPORTS = 3
"""Reports in a row that did not come, from which a node may be named before it counts as silent."""

SLACK_S = 2.0
"""A report is on its way, and the last step ends, within this time of each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostNode:
    """A node that stopped reporting, and its ranks that nothing is known of since."""

    node: str
    silent_for_s: float
    ranks: tuple[Position, ...]
    sure: bool
    """It has been silent for as long as an agent may never be."""
    with_the_job: bool
    """It fell silent when the job stopped, not while the job still stepped."""


def find_lost_nodes(picture: Picture) -> tuple[LostNode, ...]:
    """Return the nodes that may be lost, those that fell silent with the job first."""
    by_node: dict[str, list[Position]] = {}
    for item in picture.by_rank.values():
        if item.evidence.presence in (Presence.LIVE, Presence.SILENT):
            by_node.setdefault(item.evidence.node, []).append(item)
    found = [
        _read_node(picture, node, by_node[node.node])
        for node in picture.case.nodes
        if _is_out_of_sight(node, by_node.get(node.node, ()))
    ]
    return tuple(sorted(found, key=lambda lost: not lost.with_the_job))


def _is_out_of_sight(node: NodeEvidence, ranks: Sequence[Position]) -> bool:
    """Return whether nothing came of a node since the job stopped, though it has ranks."""
    if not ranks or any(item.evidence.dumps for item in ranks):
        return False
    if all(item.evidence.presence is Presence.SILENT for item in ranks):
        return True
    return node.silent_for_s >= EARLY_REPORTS * node.interval_s


def _read_node(picture: Picture, node: NodeEvidence, ranks: Sequence[Position]) -> LostNode:
    slack_s = SLACK_S + node.interval_s + 2 * picture.case.typical_step_s
    return LostNode(
        node=node.node,
        silent_for_s=node.silent_for_s,
        ranks=tuple(ranks),
        sure=all(item.evidence.presence is Presence.SILENT for item in ranks),
        with_the_job=node.silent_for_s <= picture.case.stalled_for_s + slack_s,
    )
