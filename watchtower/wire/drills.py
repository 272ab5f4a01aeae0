"""Names of drill jobs on a node that also runs a production agent: they start with a prefix.

A drill runs its own tower and agents, and its ranks are ordinary processes. Another agent on the
same machine reports those ranks with the prefix, so that lists, metrics and alerts can exclude
them.
"""

from __future__ import annotations

from watchtower.wire.bounds import MAX_NAME

VARIABLE = "WATCHTOWER_DRILL_NODE"
"""Environment variable of a drill's ranks. The drill's own agents select ranks by it."""

PREFIX = "drill:"


def mark_drill(name: str) -> str:
    """Return the job name with the prefix of drills."""
    return name if is_drill(name) else f"{PREFIX}{name}"[:MAX_NAME]


def is_drill(name: str) -> bool:
    """Return whether the name belongs to a drill's job."""
    return name.startswith(PREFIX)
