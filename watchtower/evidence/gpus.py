"""Reads what the GPU of a rank does, and its errors, from the observations of its node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from watchtower.service.xid_table import XidMeaning, explain_xid
from watchtower.wire.observations import Observation

GPU_PATTERN = "gpu_pattern"
"""Family of the observations of what a GPU does: one for each process of a GPU."""

STUCK_FAMILY = "nvml_stuck"
"""Family of the observation of a call of the driver that does not return."""

GPU_ECC = "gpu_ecc"
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
        if each.family == GPU_ECC and each.age_s <= ECC_FRESH_S:
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
    found = [each for each in observations if each.family == GPU_PATTERN and each.age_s <= FRESH_S]
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


XID, LOST, NEEDS_RESET = "xid", "gpu_lost", "gpu_reset_required"
"""Families of observations that are errors of a GPU: of the kernel log, and states in NVML."""

NVML_RECOVERY = "gpu_recovery"
"""Family of the observation of what the driver recommends at present, as NVML reports it."""

FAULTS = (XID, LOST, NEEDS_RESET)
"""Families that show errors of a GPU."""

FALLEN_OFF = 79
"""The code of a GPU that the driver reports as lost without a number."""

NEEDS_RESET_MEANS = XidMeaning(
    means="its driver reports that it needs a reset", device_class="gpu", action="reset_gpu"
)

RECOVERY = 154
"""The driver's own message about what a GPU needs. It is more specific than the table."""

RECOVERY_ACTIONS = {
    "GPU Reset Required": "reset_gpu",
    "Node Reboot Required": "reboot_node",
    "Drain P2P": "reset_gpu",
    "Drain and Reset": "reset_gpu",
}
"""Words of a line with Xid 154, after "to 0x...": the action."""

NVML_ACTIONS = {1: "reset_gpu", 2: "reboot_node", 3: "reset_gpu", 4: "reset_gpu", 7: "reboot_node"}
"""Values of NVML's recovery action: the action. Others, such as a reset of the bus, have no advice
of their own."""


class Ask(NamedTuple):
    """What the driver itself asks for."""

    action: str
    source: str
    """The source, in words."""


def explain_error(observation: Observation) -> XidMeaning | None:
    """Return what an observation of the families `FAULTS` means; None if it is not an error."""
    if observation.family == NEEDS_RESET:
        return NEEDS_RESET_MEANS
    if observation.family not in FAULTS:
        return None
    code = code_of(observation)
    meaning = explain_xid(FALLEN_OFF if code is None else code)
    return None if meaning.device_class == "info" else meaning


def is_fault(observation: Observation) -> bool:
    """Return whether it is an error for which the GPU is to blame."""
    meaning = explain_error(observation)
    return meaning is not None and meaning.is_fault


def code_of(observation: Observation) -> int | None:
    """Return the number of an Xid; None if the driver wrote only that the GPU is lost."""
    code = observation.name.partition(".")[2]
    return int(code) if code.isdecimal() and len(code) < 6 else None


def find_asked(observations: Iterable[Observation], subject: str) -> Ask | None:
    """Return what the driver asks for at present. NVML shows it, or the last line of the log."""
    asked: Ask | None = None
    for each in observations:
        if each.subject != subject:
            continue
        if each.family == NVML_RECOVERY and (action := NVML_ACTIONS.get(int(each.value or 0), "")):
            return Ask(action, "recovery action in NVML")
        is_line = each.family == XID and code_of(each) == RECOVERY
        if is_line and (action := _read_recovery(each)):
            asked = Ask(action, "Xid 154")
    return asked


def find_gpu_index(observations: Iterable[Observation], subject: str) -> int | None:
    """Return the number of a GPU on its node; None if it is not known."""
    found = (each for each in observations if each.family == GPU_PATTERN)
    values = (each.value for each in found if each.subject == subject)
    return next((int(value) for value in values if value is not None), None)


def _read_recovery(observation: Observation) -> str:
    """Return the action that a line with Xid 154 names; empty if it names none."""
    words = observation.text.rpartition(" to 0x")[2].partition("(")[2].partition(")")[0]
    return RECOVERY_ACTIONS.get(words, "")
