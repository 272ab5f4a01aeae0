"""A GPU reported an error, its driver does not answer, or it does what no other GPU does.

Errors that can explain why a rank does not continue: the kernel log names the GPU, and often the
process. Errors for which the program is to blame, and errors that follow another one, accuse no GPU
(`watchtower/service/xids.toml`).

Driver: a call that does not return is one of the agent's own: the rank probably gets no answer
either. These calls are made for one GPU each, and name it. Where a lock of the driver blocks the
calls for all GPUs, the one that was blocked first is named.

Odd GPU: all hosts wait for their GPUs, so that nothing else can name the rank. The GPUs of the
others only wait: a kernel is resident, and hardly uses memory or power. A GPU that works may still
finish: its rank is behind the others. A GPU without work, of which the host waits for the end of
work, has failed. A GPU whose counters stand still may have failed, or only its counters: that is a
doubt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from watchtower.diagnosis.accusation import CANDIDATE, MAX_QUOTED, Accusation, Doubt, Tier, of_rank
from watchtower.diagnosis.advice import RESTART_BEFORE_STEP
from watchtower.diagnosis.domain import Line
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.reasons import peers_reason, step_reason
from watchtower.evidence.gpus import (
    FAMILIES,
    NEEDS_RESET_MEANS,
    STUCK_FAMILY,
    WORKING,
    ActionSource,
    GpuError,
    GpuPattern,
    GpuUse,
    find_gpu_errors,
)
from watchtower.wire.verdict import Cause, Domain
from watchtower.writing.text import clean, count_ranks, format_duration, join_words

WHOM = (Line(Domain.GPU),)

ERROR_WEIGHT, CALL_WEIGHT = 0.85, 0.75

BEFORE_S = 60.0
"""An error may come this many seconds before the last step: queued work still ends."""

STEPS_AFTER = 3
"""A rank that made more steps than this after the error went on in spite of it."""

AT_ONCE_S = 1.0
"""An error this close to the last step came "at the last step": reports are a second apart."""

LEAST_S = 5.0
"""A call that has not returned for less than this may be slow. Some take 3 s on a cold driver."""

MAX_ERRORS = 4
"""Later errors of a GPU that are named."""

GPU_ERROR_BESIDE = Doubt(
    "gpu_error_beside", CANDIDATE, "{suspects} waits for others, and another rank does not"
)
GPU_ERROR_EARLIER = Doubt("gpu_error_earlier", 0.75, "the job continued after the error of the GPU")

ACTIONS = {
    "restart_app": "restart the job from its last checkpoint; if it happens again on GPU {device} "
    "of {node}, replace that GPU",
    "reset_gpu": "drain {node}, then reset GPU {device}: `nvidia-smi --gpu-reset`; {source}",
    "reboot_node": "drain and reboot {node}: only a reboot brings GPU {device} back; {source}",
    "check_mechanicals": "drain {node} and check the power cables of GPU {device}; {source}",
    "check_link": "drain {node} and check the NVLinks of GPU {device}: `nvidia-smi nvlink "
    "--status`, and the fabric manager; {source}",
    "update_software": "update the driver and the firmware of {node}; {source}",
    "contact_support": "drain {node} and report GPU {device} to its vendor; {source}",
}
"""What helps, by the actions of `watchtower/service/xids.toml`."""

READ_XIDS = "on {node}: `dmesg --level=err,warn | grep -i xid` shows every error of its GPUs"
REBOOT_STUCK_DRIVER = (
    "drain and reboot {node}: no process can use a driver that does not answer; read its kernel "
    "log for Xid lines first"
)


@dataclass(frozen=True, slots=True)
class FaultyGpu:
    """A rank whose GPU reported errors, the earliest first."""

    position: Position
    errors: tuple[GpuError, ...]
    before_s: float
    """Seconds from the first error to the last step of the rank; negative if it came later."""

    @property
    def text(self) -> str:
        """Why the rank is suspected: "uses GPU 0000:3b:00, which reported Xid 79 at its last step
        (the GPU has ...)"."""
        error = self.errors[0]
        side = "before" if self.before_s > 0 else "after"
        when = f"{format_duration(abs(self.before_s))} {side} its last step"
        if abs(self.before_s) < AT_ONCE_S:
            when = "at its last step"
        did = "failed" if error.code is None else f"reported {_name_error(error)}"
        return f"uses GPU {clean(error.device, 32)}, which {did} {when} ({error.means})"


def find_error(picture: Picture) -> Accusation | None:
    """Accuse the ranks whose GPUs reported errors around their last step, the earliest first."""
    found = sorted(_find_faulty(picture), key=lambda each: -each.errors[0].age_s)
    if not found:
        return None
    suspects = tuple(each.position for each in found)
    first, why = found[0].errors[0], {each.position.rank: each.text for each in found}
    return Accusation(
        cause=Cause.GPU_FAULT,
        tier=Tier.CANNOT_ANSWER,
        suspects=suspects,
        reasons=(
            *(
                of_rank("gpu", ERROR_WEIGHT, each.position, f"{each.text}{_name_later(each)}")
                for each in found[:MAX_QUOTED]
            ),
            *step_reason(picture, suspects[0]),
            *peers_reason(picture, suspects),
        ),
        doubts=tuple(_find_doubts(picture, found)),
        why=lambda position: why[position.rank],
        advice=(ACTIONS[first.action], READ_XIDS),
        names={"device": clean(first.device, 32), "source": _name_source(first)},
    )


def _find_faulty(picture: Picture) -> Iterator[FaultyGpu]:
    oldest_s = picture.case.stalled_for_s + BEFORE_S
    for item in picture.observed_ranks:
        errors = find_gpu_errors(picture.observed(item.rank, *FAMILIES))
        errors = tuple(error for error in errors if error.age_s <= oldest_s)
        if errors:
            yield FaultyGpu(item, errors, errors[0].age_s - item.age_s)


def _find_doubts(picture: Picture, found: list[FaultyGpu]) -> Iterator[Doubt]:
    accused = {each.position.rank for each in found}
    others = [item for item in picture.sinks if item.rank not in accused]
    if others and all(each.position.waits for each in found):
        yield GPU_ERROR_BESIDE
    if found[0].before_s > max(STEPS_AFTER * picture.case.typical_step_s, BEFORE_S / 6):
        yield GPU_ERROR_EARLIER


def _name_error(error: GpuError) -> str:
    """Return "Xid 79", or how the driver names an error without a number."""
    return "GPU lost" if error.code is None else f"Xid {error.code}"


def _name_later(found: FaultyGpu) -> str:
    names = dict.fromkeys(_name_error(each) for each in found.errors[1 : MAX_ERRORS + 1])
    return f"; then {join_words(list(names))}" if names else ""


def _name_source(error: GpuError) -> str:
    """Return which source asks for the action."""
    if error.source is ActionSource.NVML:
        return "the driver itself asks for this (recovery action in NVML)"
    if error.source is ActionSource.XID_154:
        return "the driver itself asks for this (Xid 154)"
    if error.means == NEEDS_RESET_MEANS.means:
        return "the driver reports that a reset is required"
    if error.code is None:
        return "NVIDIA's catalogue asks for this after Xid 79"
    return f"NVIDIA's catalogue asks for this after Xid {error.code}"


# The driver


def find_stuck_driver(picture: Picture) -> Accusation | None:
    """Accuse the rank whose GPU was blocked first."""
    calls = [
        (item, call)
        for item in picture.observed_ranks
        for call in picture.observed(item.rank, STUCK_FAMILY)
        if call.age_s >= LEAST_S
    ]
    if not calls:
        return None
    suspect, call = max(calls, key=lambda each: each[1].age_s)
    others = [item for item in picture.sinks if item is not suspect]
    text = f"{clean(call.text, 128)} for {format_duration(call.age_s)}"
    return Accusation(
        cause=Cause.GPU_DRIVER_STUCK,
        tier=Tier.CANNOT_ANSWER,
        suspects=(suspect,),
        reasons=(
            of_rank("gpu", CALL_WEIGHT, suspect, text),
            *step_reason(picture, suspect),
            *peers_reason(picture, (suspect,)),
        ),
        doubts=(GPU_ERROR_BESIDE,) if others and suspect.waits else (),
        why=lambda _: f"uses a GPU whose driver does not answer: {text}",
        advice=(REBOOT_STUCK_DRIVER, RESTART_BEFORE_STEP),
    )


# The odd GPU

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
