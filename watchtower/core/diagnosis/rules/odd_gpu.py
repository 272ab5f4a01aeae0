"""All hosts wait for their GPUs, and one GPU does what no other does: it holds up the job.

The GPUs of the others only wait: a kernel is resident, and hardly uses memory or power. In the host
all ranks look alike then, so that nothing else can name the rank.
"""

from __future__ import annotations

from watchtower.core.diagnosis import doubts
from watchtower.core.diagnosis.accusation import Accusation, Kind, Reason, Tier
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.reasons import step_reason
from watchtower.core.diagnosis.subjects import OddGpu
from watchtower.core.reading.gpus import GpuPattern, GpuUse
from watchtower.wire.verdict import Cause

LOAD_WEIGHT = 0.8

LEAST_WAITING = 2
"""GPUs that must wait. Of two GPUs that differ, either may be the odd one."""


def find(picture: Picture) -> Accusation | None:
    """Accuse the one rank whose GPU works or is idle while the GPUs of all others wait."""
    live = picture.live
    if len(picture.waiting) < len(live) or not all(item.waits_for_device for item in live):
        return None
    uses = {item.rank: use for item in live if (use := picture.gpu_use(item.rank)) is not None}
    waiting = tuple(i for i in live if _is(uses.get(i.rank), GpuPattern.SPINNING))
    odd = [item for item in live if item.rank in uses and item not in waiting]
    if len(odd) != 1 or len(waiting) < LEAST_WAITING:
        return None
    suspect = odd[0]
    about = OddGpu(suspect, uses[suspect.rank], waiting)
    is_idle = about.use.pattern is GpuPattern.IDLE
    return Accusation(
        cause=Cause.GPU_FAULT,
        tier=Tier.PROGRESS,
        suspects=(suspect,),
        reasons=(
            Reason(Kind.GPU_LOAD, LOAD_WEIGHT, (suspect.rank,), about),
            *step_reason(picture, suspect),
        ),
        doubts=() if len(uses) == len(live) else (doubts.GPUS_UNKNOWN,),
        advice=("odd_gpu_idle" if is_idle else "odd_gpu_works", "restart_before_step"),
        about=about,
    )


def _is(use: GpuUse | None, pattern: GpuPattern) -> bool:
    return use is not None and use.pattern is pattern
