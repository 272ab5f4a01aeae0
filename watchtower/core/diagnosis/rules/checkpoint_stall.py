"""A rank is writing or reading a checkpoint while the others wait for it."""

from __future__ import annotations

from watchtower.core.diagnosis.accusation import accuse_by_stack
from watchtower.core.diagnosis.evidence_wording import movement_evidence
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position
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


def find(picture: Picture) -> Finding | None:
    """Accuse the ranks whose stacks, or whose phase, are in a checkpoint."""
    saving = [item for item in picture.sinks if _is_saving(item)]
    if not saving:
        return None
    first = saving[0]
    node = clean(first.evidence.node, 64) or "its node"
    return accuse_by_stack(
        picture,
        saving,
        cause=Cause.CHECKPOINT_STALL,
        says=lambda item: f"{_say_movement(item)}{say_child(picture, item)}",
        extra=[
            *(movement_evidence(item, 0.0 if item.moving else 0.4) for item in saving[:3]),
            *child_evidence(picture, saving[:3]),
        ],
        next_steps=(_advise(first, node), "the last complete checkpoint is older than this one"),
    )


def _is_saving(position: Position) -> bool:
    if position.frame_class is FrameClass.CHECKPOINT:
        return True
    says_so = any(word in position.phase.lower() for word in PHASE_WORDS)
    return says_so and position.frame_class in UNNAMED


def _say_movement(position: Position) -> str:
    return "; it is moving data" if position.moving else "; no data moves"


def _advise(position: Position, node: str) -> str:
    target = clean(position.kernel.target, 120)
    where = target or "the checkpoint's destination"
    if position.moving:
        return f"wait, or look how fast {where} takes data on {node}"
    return f"look at {where} on {node}: full, hung or not drained by a reader"
