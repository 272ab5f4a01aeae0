"""A node with its agent and its ranks is gone: it fell silent when the job stopped.

An agent that fell silent while the job still stepped proves that the agent is gone, not the node.
Then the job goes on, or a rank of that node hangs unseen; so a node is accused with confidence only
when it fell silent together with the job, and while no rank that answers is elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchtower.diagnosis.accusation import CANDIDATE, Accusation, Doubt, Reason, Tier
from watchtower.diagnosis.domain import Line
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.reasons import peers_reason, ranks_of
from watchtower.diagnosis.words import write_others
from watchtower.evidence.case import NodeEvidence, Presence
from watchtower.evidence.exits import DeathKind
from watchtower.wire.verdict import Cause, Domain
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean, count_ranks, format_duration, join_sentences, join_words

WHOM = (Line(Domain.NODE),)

EARLY_REPORTS = 3
"""Reports in a row that did not come, from which a node may be named before it counts as silent."""

SLACK_S = 2.0
"""A report is on its way, and the last step ends, within this time of each other."""

SURE_WEIGHT, EARLY_WEIGHT = 0.85, 0.6

MAX_NODES = 4
"""Nodes named in a summary; the others are counted."""

AGENT_ALONE = Doubt(
    "agent_alone", 0.92, "only the agent of the node may be gone, and a rank of that node may hang"
)
NODE_LEFT_EARLIER = Doubt(
    "node_left_earlier", CANDIDATE, "the job made steps after the node stopped reporting"
)
OTHERS_ELSEWHERE = Doubt(
    "others_elsewhere",
    CANDIDATE,
    "another rank, on a live node, does not wait and may hold up the job",
)

IS_NODE_UP = "check that {node} is up: use its console, its BMC or the scheduler"
CHECK_AGENT = (
    "if {node} answers, only the agent has failed: run `systemctl status watchtower-agent` there"
)


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


def find(picture: Picture) -> Accusation | None:
    """Accuse every rank of the nodes that fell silent with the job."""
    lost = find_lost_nodes(picture)
    if not lost or not _are_missed(picture):
        return None
    together = tuple(node for node in lost if node.with_the_job)
    accused = together or lost
    suspects = tuple(item for node in accused for item in node.ranks)
    why_not = [AGENT_ALONE] if together else [NODE_LEFT_EARLIER]
    if any(item not in suspects for item in picture.sinks):
        why_not.append(OTHERS_ELSEWHERE)
    silent_for = {item.rank: node.silent_for_s for node in accused for item in node.ranks}
    return Accusation(
        cause=Cause.NODE_LOST,
        tier=Tier.CANNOT_ANSWER,
        suspects=suspects,
        reasons=(
            *(_fell_silent(picture, node) for node in accused),
            *peers_reason(picture, suspects),
        ),
        doubts=tuple(why_not),
        why=lambda position: (
            f"is on a node that has not reported for {format_duration(silent_for[position.rank])}"
        ),
        summary=join_sentences(
            f"{_name_nodes(accused)} stopped reporting {format_duration(accused[0].silent_for_s)} "
            f"ago ({name_ranks(ranks_of(suspects))})",
            write_others(picture, suspects),
        ),
        advice=(IS_NODE_UP, CHECK_AGENT),
        names={"node": clean(accused[0].node, 64)},
    )


def _name_nodes(lost: Sequence[LostNode]) -> str:
    shown = [clean(node.node, 64) for node in lost[:MAX_NODES]]
    more = len(lost) - len(shown)
    names = join_words([*shown, f"{more} more"] if more else shown)
    return f"{'nodes' if len(lost) > 1 else 'node'} {names}"


def _fell_silent(picture: Picture, lost: LostNode) -> Reason:
    ago = format_duration(picture.case.stalled_for_s)
    when = (
        f"the job stopped {ago} ago" if lost.with_the_job else f"the job made steps until {ago} ago"
    )
    text = (
        f"node {clean(lost.node, 64)} ({count_ranks(len(lost.ranks))}) has not reported for "
        f"{format_duration(lost.silent_for_s)}; {when}"
    )
    return Reason("node", SURE_WEIGHT if lost.sure else EARLY_WEIGHT, ranks_of(lost.ranks), text)


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


def _are_missed(picture: Picture) -> bool:
    """Return whether a rank waits for the ranks of a lost node, or died of their silence."""
    died = any(death.kind is DeathKind.CONSEQUENTIAL for death in picture.deaths)
    return bool(picture.waiting) or died
