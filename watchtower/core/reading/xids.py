"""What an Xid error of NVIDIA's driver means, and what it asks for. The table is data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from watchtower.core.reading.facts import read_facts
from watchtower.wire.observations import Observation

FAMILY, LOST = "xid", "gpu_lost"
"""Families of the observations of the kernel log that this module reads."""

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

BLAMELESS = frozenset({"application", "info", "secondary"})
"""Classes of which the GPU is not the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XidMeaning:
    """One entry of the table."""

    means: str
    device_class: str
    action: str


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


UNKNOWN_XID = XidMeaning(
    means="an error that is not in the table", device_class="gpu", action="contact_support"
)


def _expand(codes: Iterable[str]) -> Iterator[int]:
    for text in codes:
        first, _, last = text.partition("-")
        yield from range(int(first), int(last or first) + 1)


_TABLE = {
    code: XidMeaning(means=entry["means"], device_class=entry["class"], action=entry["action"])
    for entry in read_facts("xids")["xid"]
    for code in _expand(entry["codes"])
}
_OFF_THE_BUS = _TABLE[79]


def explain_xid(code: int) -> XidMeaning:
    """Return the meaning of a code. An unknown code is an error of the GPU."""
    return _TABLE.get(code, UNKNOWN_XID)


def find_gpu_errors(observations: Iterable[Observation]) -> tuple[GpuError, ...]:
    """Return the errors for which a GPU is to blame, the earliest first.

    Messages, errors of the program and errors that follow another one are left out.
    """
    seen = [each for each in observations if each.family in (FAMILY, LOST)]
    asked = {each.subject: _read_recovery(each) for each in seen if _code_of(each) == RECOVERY}
    errors = []
    for each in sorted(seen, key=lambda item: -item.age_s):
        code = _code_of(each)
        meaning = _OFF_THE_BUS if code is None else explain_xid(code)
        if meaning.device_class in BLAMELESS or meaning.action == "ignore":
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
