"""Jobs of drills on a node with a production agent: their names begin with a mark.

A drill brings its own tower and agents, and its ranks are ordinary processes. Another agent on the
same machine reports them under a marked name, so that lists, metrics and alerts can leave them out.
"""

from __future__ import annotations

from watchtower.wire.bounds import MAX_NAME

VARIABLE = "WATCHTOWER_DRILL_NODE"
"""Environment variable of the ranks of a drill. An agent that selects by it is the drill's own."""

PREFIX = "drill:"


def mark_drill(name: str) -> str:
    """Return the name of a job of a drill."""
    return name if is_drill(name) else f"{PREFIX}{name}"[:MAX_NAME]


def is_drill(name: str) -> bool:
    """Return whether a job is of a drill."""
    return name.startswith(PREFIX)
