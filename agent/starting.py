"""The start of the agent: its limit of descriptors, and the line that it prints."""

from __future__ import annotations

import resource

from agent import config
from watchtower.wire.report import AgentGaps

MAX_OWN_DESCRIPTORS = 65536
"""The usual limit of 1024 is for programs with select(2). 8 ranks with 64 workers need more."""


def raise_descriptor_limit() -> None:
    """Raise the limit of open descriptors: each watched rank and worker needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    may = MAX_OWN_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    wanted = min(may, MAX_OWN_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def make_first_line(settings: config.Settings, gaps: AgentGaps, metrics_url: str) -> str:
    """Return one line: what this agent does, and what it cannot do on this node."""
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
