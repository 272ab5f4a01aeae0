"""All hosts wait for their GPUs, and one GPU does what no other does: it holds up the job.

The GPUs of the others only wait: a kernel is resident, and hardly uses memory or power. In the host
all ranks are alike then, so that nothing else can name the rank.

A GPU that works may still finish: its rank is behind the others. A GPU without work, of which the
host waits for the end of work, has failed. A GPU whose counters stand still may have failed, or
only its counters: that is a doubt.
"""

from __future__ import annotations

from watchtower.diagnosis import doubts
from watchtower.diagnosis.accusation import Accusation, Reason, ReasonKind, Tier
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.reasons import step_reason
from watchtower.diagnosis.subjects import OddGpu
from watchtower.evidence.gpus import WORKING, GpuPattern
from watchtower.wire.verdict import Cause

LOAD_WEIGHT = 0.8

LEAST_WAITING = 2
"""GPUs that must wait. If two GPUs differ, either may be the odd one."""


def find_working(picture: Picture) -> Accusation | None:
    """Accuse the one rank whose GPU works while the GPUs of all others wait."""
    odd = _find_odd(picture)
    if odd is None or odd.use.pattern not in WORKING:
        return None
    return _accuse(picture, odd, Cause.BEHIND_COLLECTIVE, "odd_gpu_works")


def find_failed(picture: Picture) -> Accusation | None:
    """Accuse the one rank whose GPU has no work, is frozen or lost while all others wait."""
    odd = _find_odd(picture)
    if odd is None or odd.use.pattern in WORKING:
        return None
    is_frozen = odd.use.pattern is GpuPattern.FROZEN
    return _accuse(picture, odd, Cause.GPU_FAULT, "odd_gpu_frozen" if is_frozen else "odd_gpu_idle")


def _find_odd(picture: Picture) -> OddGpu | None:
    live = picture.live
    if len(picture.waiting) < len(live) or not all(item.waits_for_device for item in live):
        return None
    uses = [(item, use) for item in live if (use := picture.gpu_use(item.rank)) is not None]
    waiting = tuple(item for item, use in uses if use.pattern is GpuPattern.SPINNING)
    odd = [(item, use) for item, use in uses if use.pattern is not GpuPattern.SPINNING]
    if len(odd) != 1 or len(waiting) < LEAST_WAITING:
        return None
    return OddGpu(*odd[0], waiting)


def _accuse(picture: Picture, odd: OddGpu, cause: Cause, advice: str) -> Accusation:
    suspect = odd.position
    are_known = len(odd.waiting) + 1 == len(picture.live)
    is_frozen = odd.use.pattern is GpuPattern.FROZEN
    named = ((doubts.GPUS_UNKNOWN, not are_known), (doubts.GPU_FROZEN, is_frozen))
    return Accusation(
        cause=cause,
        tier=Tier.PROGRESS,
        suspects=(suspect,),
        reasons=(
            Reason(ReasonKind.GPU_LOAD, LOAD_WEIGHT, (suspect.rank,), odd),
            *step_reason(picture, suspect),
        ),
        doubts=tuple(doubt for doubt, holds in named if holds),
        advice=(advice, "restart_before_step"),
        about=odd,
    )
