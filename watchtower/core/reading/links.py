"""Links that failed, among the observations of the nodes: network cards, NVLink and NVSwitch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from watchtower.wire.observations import Observation

STATES = ("nic_link_lost", "nic_link_down", "nic_fault")
"""Families about a link of a network card that was lost, or about a card that failed."""

NVLINK_LOST = "gpu_nvlink_lost"
"""Family of the observation that NVLinks of a GPU were lost that were up before."""

SWITCH, SWITCH_FATAL = "sxid", ", Fatal, "
"""Family of errors of an NVSwitch, and the word of the driver for those that stop links."""

COUNTERS = ("nic_errors", "gpu_errors.nvlink_replay", "gpu_errors.nvlink_recovery")
"""Names of observations about counters that increased. Errors that were corrected are ordinary."""


@dataclass(frozen=True, slots=True)
class LinkFault:
    """One link that failed."""

    node: str
    observation: Observation
    by_state: bool
    """Its state shows it, and not only a counter of errors."""
    is_nvlink: bool

    @property
    def link(self) -> str:
        """The link or device: "eth1", "0000:5e:00"."""
        return self.observation.subject.partition(":")[2] or self.observation.subject


def find_link_faults(
    observations: Iterable[tuple[str, Observation]], oldest_s: float
) -> tuple[LinkFault, ...]:
    """Return the links that failed in the last `oldest_s` seconds, states first, then the earliest.

    Each observation comes with its node.
    """
    recent = ((node, each) for node, each in observations if each.age_s <= oldest_s)
    faults = (fault for node, each in recent for fault in _read(node, each))
    return tuple(sorted(faults, key=lambda fault: (not fault.by_state, -fault.observation.age_s)))


def _read(node: str, observation: Observation) -> Iterator[LinkFault]:
    if observation.family in STATES:
        yield LinkFault(node, observation, by_state=True, is_nvlink=False)
    elif observation.family == NVLINK_LOST or (
        observation.family == SWITCH and SWITCH_FATAL in observation.text
    ):
        yield LinkFault(node, observation, by_state=True, is_nvlink=True)
    elif observation.name in COUNTERS:
        is_nvlink = observation.family == "gpu_errors"
        yield LinkFault(node, observation, by_state=False, is_nvlink=is_nvlink)
