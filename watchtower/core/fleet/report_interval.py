"""How often agents report: less often when there are thousands of them.

One tower takes about 2,000 reports a second on one core (`benchmarks/fleet.py`). With all of a core
spent on reports, a stall of the whole fleet would be diagnosed late: its dumps would wait.
"""

from __future__ import annotations

MANY_NODES = 1024
"""With more nodes than this, agents are asked to report less often."""

LONG_INTERVAL_S = 2.0
"""Seconds between two reports of one node then. It is no longer than this however many nodes there
are, since anyone who has an agent's token can report nodes that do not exist."""


def report_interval_s(nodes: int) -> float:
    """Return the least seconds between two reports of a node that the tower asks for; 0 leaves it
    to the agent."""
    return LONG_INTERVAL_S if nodes > MANY_NODES else 0.0
