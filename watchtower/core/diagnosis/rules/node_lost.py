"""A node with its agent and its ranks is gone: it fell silent when the job stopped.

An agent may also be gone alone. Then the job goes on, or a rank of that node hangs unseen; so a
node is accused with confidence only when it fell silent together with the job, and while no rank
that answers is behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.core.diagnosis.evidence_wording import accuse, peers_evidence, ranks_of, say_others
from watchtower.core.diagnosis.finding import Finding, Tier
from watchtower.core.diagnosis.lost_nodes import LostNode, find_lost_nodes
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.weighing import DOUBT_CEILING, weigh
from watchtower.core.phrases import clean, join_words, say_duration
from watchtower.core.ranksets import count_ranks, name_ranks
from watchtower.core.reading.exits import DeathKind
from watchtower.wire.verdict import Cause, Evidence

SURE_WEIGHT, EARLY_WEIGHT = 0.85, 0.6
LOST_CEILING = 0.92
"""The agent alone may have died in the moment in which a rank of its node hung."""

MAX_NAMED = 4
"""Nodes named in a summary; the others are counted."""


def find(picture: Picture) -> Finding | None:
    """Accuse every rank of the nodes that fell silent with the job."""
    lost = find_lost_nodes(picture)
    if not lost or not _are_missed(picture):
        return None
    together = [node for node in lost if node.with_the_job]
    accused = together or list(lost)
    suspects = [item for node in accused for item in node.ranks]
    evidence = [_evidence(picture, node) for node in accused]
    evidence += peers_evidence(picture, suspects)
    doubtful = not together or _somebody_else_is_behind(picture, suspects)
    names = _name(accused)
    return Finding(
        cause=Cause.NODE_LOST,
        tier=Tier.CANNOT_ANSWER,
        confidence=weigh(evidence, ceiling=DOUBT_CEILING if doubtful else LOST_CEILING),
        suspects=tuple(
            accuse(item, Cause.NODE_LOST, _why(node)) for node in accused for item in node.ranks
        ),
        summary=(
            f"{names} stopped reporting {say_duration(accused[0].silent_for_s)} ago with "
            f"{name_ranks(item.rank for item in suspects)}{say_others(picture, suspects)}"
        ),
        evidence=tuple(evidence),
        next_steps=(
            f"is {clean(accused[0].node, 64)} up? try its console, its BMC, the scheduler",
            "if it answers, only the agent is gone: `systemctl status watchtower-agent` there, "
            "then look again",
        ),
    )


def _are_missed(picture: Picture) -> bool:
    """Whether somebody waits for the ranks of a lost node, or died of their silence."""
    deaths = picture.deaths
    return bool(picture.waiting) or any(death.kind is DeathKind.CONSEQUENTIAL for death in deaths)


def _somebody_else_is_behind(picture: Picture, suspects: Sequence[object]) -> bool:
    return any(item not in suspects for item in picture.sinks)


def _name(lost: Sequence[LostNode]) -> str:
    shown = [clean(node.node, 64) for node in lost[:MAX_NAMED]]
    more = len(lost) - len(shown)
    return join_words([*shown, f"{more} more nodes"] if more else shown)


def _why(lost: LostNode) -> str:
    return f"its node has not reported for {say_duration(lost.silent_for_s)}"


def _evidence(picture: Picture, lost: LostNode) -> Evidence:
    when = (
        f"the job stopped {say_duration(picture.case.stalled_for_s)} ago"
        if lost.with_the_job
        else f"the job still stepped until {say_duration(picture.case.stalled_for_s)} ago"
    )
    return Evidence(
        source="node",
        text=(
            f"{clean(lost.node, 64)} with {count_ranks(len(lost.ranks))} has not reported for "
            f"{say_duration(lost.silent_for_s)}; {when}"
        ),
        ranks=ranks_of(lost.ranks),
        weight=SURE_WEIGHT if lost.sure else EARLY_WEIGHT,
    )
