"""A rank is writing or reading a checkpoint while the others wait for it."""

from __future__ import annotations

from watchtower.core.case import Case
from watchtower.core.diagnosis.accusation import accuse_by_stack
from watchtower.core.diagnosis.evidence_wording import movement_evidence
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.standing import Standing
from watchtower.core.diagnosis.standings import Standings
from watchtower.core.diagnosis.workers import child_evidence, say_child
from watchtower.core.phrases import clean
from watchtower.core.reading.frames import FrameClass
from watchtower.wire.verdict import Cause

PHASE_WORDS = ("checkpoint", "ckpt", "snapshot")
"""Phases by which a job itself says that it saves."""

UNNAMED = frozenset(
    {
        FrameClass.USER,
        FrameClass.NONE,
        FrameClass.NETWORK,
        FrameClass.LOCK,
        FrameClass.OPTIMIZER,
        FrameClass.CHILD,
    }
)
"""Classes that do not contradict the phase."""


def find(case: Case, standings: Standings) -> Finding | None:
    """Accuse the ranks whose stacks, or whose phase, are in a checkpoint."""
    saving = [item for item in standings.behind if _is_saving(item)]
    if not saving:
        return None
    first = saving[0]
    node = clean(first.evidence.node, 64) or "its node"
    return accuse_by_stack(
        standings,
        saving,
        cause=Cause.CHECKPOINT_STALL,
        says=lambda item: f"{_say_movement(item)}{say_child(standings, item)}",
        extra=[
            *(movement_evidence(item, 0.0 if item.moving else 0.4) for item in saving[:3]),
            *child_evidence(standings, saving[:3]),
        ],
        next_steps=(_advise(first, node), "the last complete checkpoint is older than this one"),
    )


def _is_saving(standing: Standing) -> bool:
    if standing.frame_class is FrameClass.CHECKPOINT:
        return True
    says_so = any(word in standing.phase.lower() for word in PHASE_WORDS)
    return says_so and standing.frame_class in UNNAMED


def _say_movement(standing: Standing) -> str:
    return "; it is moving data" if standing.moving else "; no data moves"


def _advise(standing: Standing, node: str) -> str:
    target = clean(standing.kernel.target, 120)
    where = target or "the checkpoint's destination"
    if standing.moving:
        return f"wait, or look how fast {where} takes data on {node}"
    return f"look at {where} on {node}: full, hung or not drained by a reader"
