"""Links that failed, among the observations of the nodes: network cards, NVLink and NVSwitch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from watchtower.evidence.job_gpus import JobGpus
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
    is_used: bool
    """The job is known to use it."""

    @property
    def link(self) -> str:
        """The link or device: "eth1", "0000:5e:00"."""
        return self.observation.subject.partition(":")[2] or self.observation.subject


def find_link_faults(
    nodes: Iterable[tuple[str, JobGpus, Iterable[Observation]]], oldest_s: float
) -> tuple[LinkFault, ...]:
    """Return the links that failed in the last `oldest_s` seconds.

    NVLinks of GPUs that the job does not use are left out. States come first, then links that the
    job is known to use, then the earliest fault. Each node comes with the GPUs of the job and with
    its observations.
    """
    faults = [
        fault
        for node, gpus, observations in nodes
        for each in observations
        if each.age_s <= oldest_s
        for fault in _read(node, gpus, each)
    ]
    return tuple(sorted(faults, key=_rank_fault))


def _rank_fault(fault: LinkFault) -> tuple[bool, bool, float]:
    return not fault.by_state, not fault.is_used, -fault.observation.age_s


def _read(node: str, gpus: JobGpus, observation: Observation) -> Iterator[LinkFault]:
    family = observation.family
    if family in STATES:
        yield LinkFault(node, observation, by_state=True, is_nvlink=False, is_used=False)
    elif family == SWITCH and SWITCH_FATAL in observation.text:
        # All GPUs of a node share its switches.
        yield LinkFault(node, observation, by_state=True, is_nvlink=True, is_used=True)
    elif family == NVLINK_LOST or observation.name in COUNTERS:
        by_state, is_nvlink = family == NVLINK_LOST, family in (NVLINK_LOST, "gpu_errors")
        is_used = gpus.uses(observation.subject) if is_nvlink else None
        if is_used is not False:
            yield LinkFault(node, observation, by_state, is_nvlink, bool(is_used))
