"""Sentences about hardware: the errors of a GPU, what a GPU does, and links that failed.

Also about whatever else separates a rank that waits like the others.
"""

from __future__ import annotations

from watchtower.diagnosis.separation import Separation
from watchtower.diagnosis.subjects import AccusationSubject, FaultyGpu, OddGpu, StuckDriver
from watchtower.evidence.gpus import EccErrors, GpuPattern, GpuUse
from watchtower.evidence.links import LinkFault
from watchtower.evidence.xids import NEEDS_RESET_MEANS, ActionSource, GpuError
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean, count_ranks, format_duration, join_words

AT_ONCE_S = 1.0
"""An error this close to the last step came "at the last step": reports are a second apart."""


def name_error(error: GpuError) -> str:
    """Return "Xid 79", or how the driver names an error without a number."""
    return "GPU lost" if error.code is None else f"Xid {error.code}"


def write_gpu_error(found: FaultyGpu) -> str:
    """Return "uses GPU 0000:3b:00, which reported Xid 79 at its last step (the GPU has ...)"."""
    error, before_s = found.errors[0], found.before_s
    if abs(before_s) < AT_ONCE_S:
        when = "at its last step"
    else:
        side = "before" if before_s > 0 else "after"
        when = f"{format_duration(abs(before_s))} {side} its last step"
    did = "failed" if error.code is None else f"reported {name_error(error)}"
    return f"uses GPU {clean(error.device, 32)}, which {did} {when} ({error.means})"


def write_source(error: GpuError) -> str:
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


_DOES = {
    GpuPattern.WORKING: "still works",
    GpuPattern.THROTTLED: "still works, with reduced clocks,",
    GpuPattern.IDLE: "has no work",
    GpuPattern.FROZEN: "no longer changes any of its counters",
    GpuPattern.LOST: "is lost",
}


def write_odd_gpu(odd: OddGpu) -> str:
    """Return "GPU 0000:3b:00 still works (99% busy ...), and the GPUs of 7 ranks only wait"."""
    use, others = odd.use, odd.waiting
    load = f" ({clean(use.load, 96)})" if use.load else ""
    return (
        f"GPU {clean(use.device, 32)} {_DOES[use.pattern]}{load}, and the GPUs of "
        f"{count_ranks(len(others))} only wait in a kernel"
    )


def write_alike(about: AccusationSubject) -> str:
    """Return why a rank is accused that waits like the others; empty for other subjects."""
    if isinstance(about, OddGpu):
        return f"waits for its device, but {write_odd_gpu(about)}"
    if isinstance(about, Separation):
        return f"waits like the others, but {write_separation(about)}"
    return ""


def write_separation(found: Separation) -> str:
    """Return "GPU errors were reported for rank 3 only: NVRM: Xid ... (12 s ago)"."""
    sentence = found.words.format(ranks=clean(name_ranks(i.rank for i in found.ranks), 60))
    seen = found.observation
    if seen is None:
        return sentence
    return f"{sentence}: {clean(seen.text or seen.name, 160)} ({format_duration(seen.age_s)} ago)"


def write_stuck_driver(stuck: StuckDriver) -> str:
    """Return "nvmlDeviceGetPowerUsage of GPU 3 has not returned for 12 s"."""
    return f"{clean(stuck.call.text, 128)} for {format_duration(stuck.call.age_s)}"


def write_slowed_gpu(use: GpuUse) -> str:
    """Return "GPU 0000:3b:00 works with reduced clocks, because of heat, power or ..."."""
    load = f" ({clean(use.load, 96)})" if use.load else ""
    return (
        f"GPU {clean(use.device, 32)} works with reduced clocks{load}, because of heat, power or a "
        "fault of its hardware"
    )


def write_ecc_errors(errors: EccErrors) -> str:
    """Return "the memory of GPU 0000:3b:00 has 17700 corrected errors a second at present"."""
    kinds = []
    if errors.corrected_per_s:
        kinds.append(f"{errors.corrected_per_s:.0f} corrected errors a second")
    if errors.has_uncorrected:
        kinds.append("new uncorrected errors")
    return f"the memory of GPU {clean(errors.device, 32)} has {join_words(kinds)} at present"


def write_link_fault(fault: LinkFault) -> str:
    """Return "gpu-042, 12 s ago: eth1 lost its link and does not have it now"."""
    ago = format_duration(fault.observation.age_s)
    return f"{clean(fault.node, 64)}, {ago} ago: {clean(fault.observation.text, 160)}"


def name_link(fault: LinkFault) -> dict[str, object]:
    """Return what advice names: the node and the link."""
    return {"node": clean(fault.node, 64), "link": clean(fault.link, 64)}
