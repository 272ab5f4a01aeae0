"""All checks, in the order in which they are shown. A new check is a line here."""

from __future__ import annotations

from typing import Any

from agent.doctor import agent_parts, devices, host, network
from agent.doctor.check import Check

CHECKS: tuple[Check[Any], ...] = (
    devices.GPUS,
    devices.KERNEL,
    devices.FABRIC,
    devices.NVLINK,
    devices.PCIE,
    network.RDMA,
    network.MTUS,
    host.SHM,
    host.LIMITS,
    host.CLOCK,
    host.MOUNTS,
    agent_parts.RANKS,
    agent_parts.PROCESSES,
    agent_parts.UNWATCHED,
    agent_parts.STACKS,
    agent_parts.NATIVE,
    agent_parts.SOURCES,
    agent_parts.SPOOL,
    agent_parts.TOWER,
)
