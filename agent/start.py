"""What the agent does and says once, when it starts."""

from __future__ import annotations

import resource

from agent.config import MAX_OWN_DESCRIPTORS, Settings
from watchtower.wire.report import AgentGaps


def raise_descriptor_limit() -> None:
    """Take as many descriptors as we may: each rank and worker under watch needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    may = MAX_OWN_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    wanted = min(may, MAX_OWN_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def first_line(settings: Settings, gaps: AgentGaps, metrics_url: str) -> str:
    """Say in one line what this agent does, and what it cannot do here."""
    parts = [f"node {settings.node} reports to {settings.tower} every {settings.interval_s:g} s"]
    if settings.match:
        parts.append("only ranks with " + " ".join(f"{k}={v}" for k, v in settings.match))
    parts.append(f"metrics on {metrics_url}" if metrics_url else "no metrics")
    stacks = gaps.python_stacks
    parts.append(f"no Python stacks: {stacks}" if stacks else "Python stacks by py-spy")
    where = settings.spool_dir or "memory (no --spool-dir)"
    parts.append(f"dumps wait in {where} while the tower is away")
    if gaps.process:
        parts.append(gaps.process)
    return "watchtower-agent: " + "; ".join(parts)
