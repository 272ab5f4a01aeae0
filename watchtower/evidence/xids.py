"""Errors of a rank's GPU among the observations of its node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from watchtower.service.xid_table import XidMeaning, explain_xid
from watchtower.wire.observations import Observation

FAMILY, LOST, NEEDS_RESET = "xid", "gpu_lost", "gpu_reset_required"
"""Families of observations that are errors of a GPU: of the kernel log, and states in NVML."""

NVML_RECOVERY = "gpu_recovery"
"""Family of the observation of what the driver recommends at present, as NVML reports it."""

FAULTS = (FAMILY, LOST, NEEDS_RESET)
FAMILIES = (*FAULTS, NVML_RECOVERY)
"""Families that this module reads."""

FALLEN_OFF = 79
"""The code of a GPU that the driver reports as lost without a number."""

NEEDS_RESET_MEANS = XidMeaning(
    means="its driver reports that it needs a reset", device_class="gpu", action="reset_gpu"
)

RECOVERY = 154
"""The driver's own message about what a GPU needs. It is more specific than the table."""

RECOVERY_ACTIONS = {
    "None": "ignore",
    "GPU Reset Required": "reset_gpu",
    "Node Reboot Required": "reboot_node",
    "Drain P2P": "reset_gpu",
    "Drain and Reset": "reset_gpu",
}
"""Words of a line with Xid 154, after "to 0x...": the action."""

NVML_ACTIONS = {1: "reset_gpu", 2: "reboot_node", 3: "reset_gpu", 4: "reset_gpu", 7: "reboot_node"}
"""Values of NVML's recovery action: the action. Others, such as a reset of the bus, have no advice
of their own."""


class ActionSource(Enum):
    """The source that asks for the action, the most specific first."""

    NVML = "nvml"
    """The driver, in its present state."""
    XID_154 = "xid_154"
    """The driver, in a line of the kernel log."""
    TABLE = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuError:
    """An error of a GPU that can explain why its rank does not continue."""

    code: int | None
    """Number of the Xid; None if the driver wrote only that the GPU is lost."""
    device: str
    """PCI address of the GPU, as in the kernel log."""
    age_s: float
    means: str
    action: str
    source: ActionSource


def find_gpu_errors(observations: Iterable[Observation]) -> tuple[GpuError, ...]:
    """Return the errors for which a GPU is to blame, the earliest first.

    Messages, errors of the program and errors that follow another one are left out.
    """
    seen = [each for each in observations if each.family in FAMILIES]
    asked = _read_actions(seen)
    errors = []
    known: set[tuple[str, str]] = set()
    for each in sorted(seen, key=lambda item: -item.age_s):
        if (each.subject, each.name) in known:
            continue  # the kernel log and NVML report the same error
        known.add((each.subject, each.name))
        meaning = _explain(each)
        if meaning is None or not meaning.is_fault:
            continue
        action, source = asked.get(each.subject, (meaning.action, ActionSource.TABLE))
        errors.append(
            GpuError(
                code=_code_of(each),
                device=each.subject.removeprefix("pci:"),
                age_s=each.age_s,
                means=meaning.means,
                action=action,
                source=source,
            )
        )
    return tuple(errors)


def is_about_nothing(observation: Observation) -> bool:
    """Return whether an observation of these families is a message, not an error."""
    meaning = _explain(observation)
    return meaning is None or meaning.device_class == "info"


def _explain(observation: Observation) -> XidMeaning | None:
    """Return what an observation means; None if it is not an error."""
    if observation.family == NEEDS_RESET:
        return NEEDS_RESET_MEANS
    if observation.family not in FAULTS:
        return None
    code = _code_of(observation)
    return explain_xid(FALLEN_OFF if code is None else code)


def _read_actions(seen: Iterable[Observation]) -> dict[str, tuple[str, ActionSource]]:
    """Return what the driver itself asks for, by device. NVML shows its present state."""
    by_line: dict[str, tuple[str, ActionSource]] = {}
    by_nvml: dict[str, tuple[str, ActionSource]] = {}
    for each in seen:
        if _code_of(each) == RECOVERY and (action := _read_recovery(each)):
            by_line[each.subject] = action, ActionSource.XID_154
        if each.family == NVML_RECOVERY and (action := NVML_ACTIONS.get(int(each.value or 0), "")):
            by_nvml[each.subject] = action, ActionSource.NVML
    return by_line | by_nvml


def _code_of(observation: Observation) -> int | None:
    code = observation.name.partition(".")[2]
    return int(code) if code.isdecimal() and len(code) < 6 else None


def _read_recovery(observation: Observation) -> str:
    """Return the action that a line with Xid 154 names; empty if it names none."""
    words = observation.text.rpartition(" to 0x")[2].partition("(")[2].partition(")")[0]
    return RECOVERY_ACTIONS.get(words, "")
