"""A node with its agent and its ranks is gone: it fell silent when the job stopped.

An agent that fell silent while the job still stepped proves that the agent is gone, not the node.
Then the job goes on, or a rank of that node hangs unseen; so a node is accused with confidence only
when it fell silent together with the job, and while no rank that answers is elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.diagnosis import doubts
from watchtower.diagnosis.accusation import Accusation, Reason, ReasonKind, Tier
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.reasons import peers_reason, ranks_of
from watchtower.diagnosis.subjects import LostNode, LostNodes
from watchtower.evidence.case import NodeEvidence, Presence
from watchtower.evidence.exits import DeathKind
from watchtower.wire.verdict import Cause

EARLY_REPORTS = 3
"""Reports in a row that did not come, from which a node may be named before it counts as silent."""

SLACK_S = 2.0
"""A report is on its way, and the last step ends, within this time of each other."""

SURE_WEIGHT, EARLY_WEIGHT = 0.85, 0.6


def find(picture: Picture) -> Accusation | None:
    """Accuse every rank of the nodes that fell silent with the job."""
    lost = find_lost_nodes(picture)
    if not lost or not _are_missed(picture):
        return None
    together = tuple(node for node in lost if node.with_the_job)
    accused = together or lost
    suspects = tuple(item for node in accused for item in node.ranks)
    why_not = [doubts.AGENT_ALONE] if together else [doubts.NODE_LEFT_EARLIER]
    if any(item not in suspects for item in picture.sinks):
        why_not.append(doubts.OTHERS_ELSEWHERE)
    return Accusation(
        cause=Cause.NODE_LOST,
        tier=Tier.CANNOT_ANSWER,
        suspects=suspects,
        reasons=(*map(_fell_silent, accused), *peers_reason(picture, suspects)),
        doubts=tuple(why_not),
        advice=("is_node_up", "check_agent"),
        about=LostNodes(accused),
    )


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


def _fell_silent(lost: LostNode) -> Reason:
    weight = SURE_WEIGHT if lost.sure else EARLY_WEIGHT
    return Reason(ReasonKind.NODE, weight, ranks_of(lost.ranks), lost)


def _are_missed(picture: Picture) -> bool:
    """Return whether a rank waits for the ranks of a lost node, or died of their silence."""
    died = any(death.kind is DeathKind.CONSEQUENTIAL for death in picture.deaths)
    return bool(picture.waiting) or died
