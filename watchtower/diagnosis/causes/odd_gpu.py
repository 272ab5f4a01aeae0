"""One GPU does what no other does, while all hosts wait for theirs, so that nothing else names it.

The GPUs of the others only wait: a kernel is resident, and hardly uses memory or power. A GPU that
works may still finish: its rank is behind the others. A GPU without work, of which the host waits
for the end of work, has failed. A GPU whose counters stand still may have failed, or only its
counters: that is a doubt.
"""

from __future__ import annotations

from typing import NamedTuple

from watchtower.diagnosis.accusation import Accusation, Doubt, Tier, of_rank
from watchtower.diagnosis.advice import RESTART_BEFORE_STEP
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.reasons import step_reason
from watchtower.evidence.gpus import WORKING, GpuPattern, GpuUse
from watchtower.wire.verdict import Cause
from watchtower.writing.text import clean, count_ranks

LOAD_WEIGHT = 0.8

LEAST_WAITING = 2
"""GPUs that must wait. If two GPUs differ, either may be the odd one."""

GPUS_UNKNOWN = Doubt("gpus_unknown", 0.6, "it is not known what the GPUs of all ranks do")
GPU_FROZEN = Doubt(
    "gpu_frozen", 0.6, "counters that stand still may be a fault of the counters alone"
)

ODD_GPU_WORKS = (
    "find the kernel that does not end on GPU {device} of {node}: check the last operations that "
    "rank {rank} queued, and custom kernels first"
)
ODD_GPU_FROZEN = (
    "check GPU {device} of {node}: does its power in `nvidia-smi -q -d POWER` still change? If "
    "not, drain the node and reset the GPU"
)
ODD_GPU_IDLE = (
    "read the kernel log of {node} and check GPU {device}: its host waits for it, and it has no "
    "work"
)

_DOES = {
    GpuPattern.WORKING: "still works",
    GpuPattern.THROTTLED: "still works, with reduced clocks,",
    GpuPattern.IDLE: "has no work",
    GpuPattern.FROZEN: "no longer changes any of its counters",
    GpuPattern.LOST: "is lost",
}


class OddGpu(NamedTuple):
    """A rank whose GPU does what those of the others do not."""

    position: Position
    use: GpuUse
    waiting: int
    """How many ranks have GPUs that wait."""


def find_working(picture: Picture) -> Accusation | None:
    """Accuse the one rank whose GPU works while the GPUs of all others wait."""
    odd = _find_odd(picture)
    if odd is None or odd.use.pattern not in WORKING:
        return None
    return _accuse_odd(picture, odd, Cause.BEHIND_COLLECTIVE, ODD_GPU_WORKS)


def find_failed(picture: Picture) -> Accusation | None:
    """Accuse the one rank whose GPU has no work, is frozen or lost while all others wait."""
    odd = _find_odd(picture)
    if odd is None or odd.use.pattern in WORKING:
        return None
    is_frozen = odd.use.pattern is GpuPattern.FROZEN
    return _accuse_odd(picture, odd, Cause.GPU_FAULT, ODD_GPU_FROZEN if is_frozen else ODD_GPU_IDLE)


def _find_odd(picture: Picture) -> OddGpu | None:
    live = picture.live
    if len(picture.waiting) < len(live) or not all(item.waits_for_device for item in live):
        return None
    uses = [(item, use) for item in live if (use := picture.gpu_use(item.rank)) is not None]
    odd = [(item, use) for item, use in uses if use.pattern is not GpuPattern.SPINNING]
    waiting = len(uses) - len(odd)
    if len(odd) != 1 or waiting < LEAST_WAITING:
        return None
    return OddGpu(*odd[0], waiting)


def _accuse_odd(picture: Picture, odd: OddGpu, cause: Cause, advice: str) -> Accusation:
    suspect, use = odd.position, odd.use
    device, load = clean(use.device, 32), f" ({clean(use.load, 96)})" if use.load else ""
    text = (
        f"GPU {device} {_DOES[use.pattern]}{load}, and the GPUs of {count_ranks(odd.waiting)} only "
        "wait in a kernel"
    )
    named = (
        (GPUS_UNKNOWN, odd.waiting + 1 < len(picture.live)),
        (GPU_FROZEN, use.pattern is GpuPattern.FROZEN),
    )
    return Accusation(
        cause=cause,
        tier=Tier.PROGRESS,
        suspects=(suspect,),
        reasons=(of_rank("gpu", LOAD_WEIGHT, suspect, text), *step_reason(picture, suspect)),
        doubts=tuple(doubt for doubt, holds in named if holds),
        why=lambda _: f"waits for its device, but {text}",
        advice=(advice, RESTART_BEFORE_STEP),
        names={"device": device},
        is_shown_by_gpus=True,
    )
