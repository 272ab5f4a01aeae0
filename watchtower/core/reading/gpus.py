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
    LOST = "lost"


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


def find_gpu_use(observations: Iterable[Observation]) -> GpuUse | None:
    """Return the use of a rank's GPU from the observations about the rank.

    None if it is not known, or if the rank uses several GPUs that do different things.
    """
    found = [each for each in observations if each.family == FAMILY and each.age_s <= FRESH_S]
    patterns = {each.name.partition(".")[2] for each in found}
    known = {pattern.value: pattern for pattern in GpuPattern}
    if len(patterns) != 1 or not patterns <= known.keys():
        return None
    first = found[0]
    is_one = len({each.subject for each in found}) == 1
    return GpuUse(
        pattern=known[patterns.pop()],
        device=first.subject.removeprefix("pci:"),
        index=int(first.value) if is_one and first.value is not None else None,
        load=first.text if is_one else "",
    )
