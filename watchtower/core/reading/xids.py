"""Errors of a rank's GPU among the observations of its node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from watchtower.wire.observations import Observation
from watchtower.xid_table import explain_xid

FAMILY, LOST = "xid", "gpu_lost"
"""Families of the observations of the kernel log that this module reads."""

FALLEN_OFF = 79
"""The code of a GPU that the driver reports as lost without a number."""

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
    by_driver: bool
    """The driver itself named the action (Xid 154)."""


def find_gpu_errors(observations: Iterable[Observation]) -> tuple[GpuError, ...]:
    """Return the errors for which a GPU is to blame, the earliest first.

    Messages, errors of the program and errors that follow another one are left out.
    """
    seen = [each for each in observations if each.family in (FAMILY, LOST)]
    asked = {each.subject: _read_recovery(each) for each in seen if _code_of(each) == RECOVERY}
    errors = []
    for each in sorted(seen, key=lambda item: -item.age_s):
        code = _code_of(each)
        meaning = explain_xid(FALLEN_OFF if code is None else code)
        if not meaning.is_fault:
            continue
        by_driver = asked.get(each.subject, "")
        errors.append(
            GpuError(
                code=code,
                device=each.subject.removeprefix("pci:"),
                age_s=each.age_s,
                means=meaning.means,
                action=by_driver or meaning.action,
                by_driver=bool(by_driver),
            )
        )
    return tuple(errors)


def _code_of(observation: Observation) -> int | None:
    code = observation.name.partition(".")[2]
    return int(code) if code.isdecimal() and len(code) < 6 else None


def _read_recovery(observation: Observation) -> str:
    """Return the action that a line with Xid 154 names; empty if it names none."""
    words = observation.text.rpartition(" to 0x")[2].partition("(")[2].partition(")")[0]
    return RECOVERY_ACTIONS.get(words, "")
