"""Reads what the GPU of a rank does, from the observations of its node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from watchtower.wire.observations import Observation

FAMILY = "gpu_pattern"
"""Family of the observations that this module reads: one for each process of a GPU."""

STUCK_FAMILY = "nvml_stuck"
"""Family of the observation of a call of the driver that does not return."""

ECC_FAMILY = "gpu_ecc"
"""Family of the observations that errors of a GPU's memory increase: "gpu_ecc.corrected" with the
errors a second between two increases, and "gpu_ecc.uncorrected"."""

ECC_FRESH_S = 30.0
"""An older increase says nothing about the steps of now. An agent reads the counters every 10 s."""

LEAST_ECC_PER_S = 100.0
"""Fewer corrected errors a second do not explain a slow GPU: a healthy one has some in a day.
Reported by others: 17,700 a second on a GPU whose driver was slow under load, and 0 on all others
of 288 nodes."""

FRESH_S = 15.0
"""An older pattern says nothing about a stall: its GPU may have changed since."""


class GpuPattern(Enum):
    """The activity of a GPU in the last seconds, as its agent judged it from load and power."""

    WORKING = "working"
    SPINNING = "spinning"
    """A kernel is resident, and neither reads memory nor draws power: it waits."""
    IDLE = "idle"
    """No kernel is resident: no work is queued."""
    THROTTLED = "throttled"
    """It works, with reduced clocks."""
    FROZEN = "frozen"
    """Its driver answers, and none of its counters changes any more."""
    LOST = "lost"


PATTERNS = {pattern.value: pattern for pattern in GpuPattern}
"""By the text in the messages."""

WORKING = (GpuPattern.WORKING, GpuPattern.THROTTLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """The GPU of one rank."""

    pattern: GpuPattern
    device: str
    """PCI address."""
    index: int | None
    """Its number on the node."""
    load: str
    """"99% busy, memory 35%, 610 W of 700 W", or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EccErrors:
    """Errors of the memory of a GPU that increase now."""

    device: str
    """PCI address."""
    corrected_per_s: float
    """0 if they do not increase."""
    has_uncorrected: bool


def find_ecc_errors(observations: Iterable[Observation]) -> EccErrors | None:
    """Return the errors that may slow down the GPU of a rank, from the observations about the rank.

    None if the counters stand still, whatever their totals are, or if only few errors were
    corrected. Of several GPUs, the one with most errors is returned.
    """
    by_device: dict[str, dict[str, float]] = {}
    for each in observations:
        if each.family == ECC_FAMILY and each.age_s <= ECC_FRESH_S:
            rates = by_device.setdefault(each.subject.removeprefix("pci:"), {})
            rates[each.name.partition(".")[2]] = each.value or 0.0
    found = [
        EccErrors(
            device=device,
            corrected_per_s=rates.get("corrected", 0.0),
            has_uncorrected="uncorrected" in rates,
        )
        for device, rates in by_device.items()
    ]
    worst = max(found, key=lambda each: (each.has_uncorrected, each.corrected_per_s), default=None)
    if worst is None or not (worst.has_uncorrected or worst.corrected_per_s >= LEAST_ECC_PER_S):
        return None
    return worst


def find_gpu_use(observations: Iterable[Observation]) -> GpuUse | None:
    """Return the use of a rank's GPU from the observations about the rank.

    None if it is not known, or if the rank uses several GPUs that do different things.
    """
    found = [each for each in observations if each.family == FAMILY and each.age_s <= FRESH_S]
    patterns = {each.name.partition(".")[2] for each in found}
    if len(patterns) != 1 or not patterns <= PATTERNS.keys():
        return None
    first = found[0]
    is_one = len({each.subject for each in found}) == 1
    return GpuUse(
        pattern=PATTERNS[patterns.pop()],
        device=first.subject.removeprefix("pci:"),
        index=int(first.value) if is_one and first.value is not None else None,
        load=first.text if is_one else "",
    )
