"""A rank computes in the user's own code and does not get to the collective."""

from __future__ import annotations

from watchtower.core.diagnosis.accusation import accuse_by_stack, doubt_crowds
from watchtower.core.diagnosis.evidence_wording import movement_evidence
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position
from watchtower.core.reading.frames import FrameClass
from watchtower.wire.verdict import Cause

COMPUTING = frozenset({FrameClass.USER, FrameClass.NONE, FrameClass.OPTIMIZER})

BUSY_WEIGHT = 0.5


def find(picture: Picture) -> Finding | None:
    """Accuse the ranks that are on a CPU in user code, running at every look."""
    busy = [item for item in picture.sinks if _is_busy(item)]
    if not busy:
        return None
    first = busy[0]
    place = first.reading.where if first.reading else "its stack"
    return accuse_by_stack(
        picture,
        busy,
        cause=Cause.BUSY_LOOP,
        says=lambda item: f", using {item.evidence.movement.cpu_cores:.1f} cores",
        extra=[movement_evidence(item, BUSY_WEIGHT) for item in busy[:3]],
        ceiling=doubt_crowds(picture, busy),
        next_steps=(
            f"read the loop around {place}: what ends it, and can this rank's input prevent that?",
            f"`py-spy record --pid {first.evidence.pid}` shows where the time goes",
        ),
    )


def _is_busy(position: Position) -> bool:
    """Tell whether it spins in code of its own; a name such as `Sampler` is no sign of loading."""
    by_name = position.reading is not None and position.reading.by_name
    loads_by_name = position.frame_class is FrameClass.DATALOADER and by_name
    return position.spins and (position.frame_class in COMPUTING or loads_by_name)
