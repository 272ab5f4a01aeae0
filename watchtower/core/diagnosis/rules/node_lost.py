"""A node with its agent and its ranks is gone: it fell silent when the job stopped.

An agent that fell silent while the job still stepped proves that the agent is gone, not the node.
Then the job goes on, or a rank of that node hangs unseen; so a node is accused with confidence only
when it fell silent together with the job, and while no rank that answers is elsewhere.
"""

from __future__ import annotations

from watchtower.core.diagnosis import doubts
from watchtower.core.diagnosis.accusation import Accusation, Reason, ReasonKind, Tier
from watchtower.core.diagnosis.lost_nodes import LostNode, find_lost_nodes
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.reasons import peers_reason, ranks_of
from watchtower.core.diagnosis.subjects import LostNodes
from watchtower.core.reading.exits import DeathKind
from watchtower.wire.verdict import Cause

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


def _fell_silent(lost: LostNode) -> Reason:
    weight = SURE_WEIGHT if lost.sure else EARLY_WEIGHT
    return Reason(ReasonKind.NODE, weight, ranks_of(lost.ranks), lost)


def _are_missed(picture: Picture) -> bool:
    """Return whether a rank waits for the ranks of a lost node, or died of their silence."""
    died = any(death.kind is DeathKind.CONSEQUENTIAL for death in picture.deaths)
    return bool(picture.waiting) or died
