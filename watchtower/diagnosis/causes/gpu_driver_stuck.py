"""A call of the GPU driver does not return, so the rank probably gets no answer either.

The agent's own calls show it. They are made for one GPU each, and name it. Where a lock of the
driver blocks the calls for all GPUs, the one that was blocked first is named.
"""

from __future__ import annotations

from watchtower.diagnosis import doubts
from watchtower.diagnosis.accusation import Accusation, Reason, ReasonKind, Tier
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.reasons import peers_reason, step_reason
from watchtower.diagnosis.subjects import StuckDriver
from watchtower.evidence.gpus import STUCK_FAMILY
from watchtower.wire.verdict import Cause

CALL_WEIGHT = 0.75

LEAST_S = 5.0
"""A call that has not returned for less than this may be slow. Some take 3 s on a cold driver."""


def find(picture: Picture) -> Accusation | None:
    """Accuse the rank whose GPU was blocked first."""
    found = [each for item in picture.live if (each := _find_stuck(picture, item)) is not None]
    if not found:
        return None
    first = max(found, key=lambda each: each.call.age_s)
    suspect = first.position
    others = [item for item in picture.sinks if item is not suspect]
    is_beside = bool(others) and suspect.waits
    return Accusation(
        cause=Cause.GPU_DRIVER_STUCK,
        tier=Tier.CANNOT_ANSWER,
        suspects=(suspect,),
        reasons=(
            Reason(ReasonKind.GPU_DRIVER, CALL_WEIGHT, (suspect.rank,), first),
            *step_reason(picture, suspect),
            *peers_reason(picture, (suspect,)),
        ),
        doubts=(doubts.GPU_ERROR_BESIDE,) if is_beside else (),
        advice=("reboot_stuck_driver", "restart_before_step"),
        about=first,
    )


def _find_stuck(picture: Picture, position: Position) -> StuckDriver | None:
    calls = picture.observed(position.rank, STUCK_FAMILY)
    late = [call for call in calls if call.age_s >= LEAST_S]
    return StuckDriver(position, max(late, key=lambda call: call.age_s)) if late else None
