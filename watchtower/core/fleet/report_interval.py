"""Decides how often agents report: less often when there are thousands of them.

One tower processes about 2,000 reports a second on one core (`benchmarks/fleet.py`). If reports
used a whole core, dumps would wait, and a stall of the whole fleet would be diagnosed late.
"""

from __future__ import annotations

MANY_NODES = 1024
"""With more nodes than this, the tower asks agents to report less often."""

LONG_INTERVAL_S = 2.0
"""Seconds between two reports of one node then. More nodes do not make it longer, because every
holder of an agent's token can report nodes that do not exist."""


def report_interval_s(nodes: int) -> float:
    """Return the minimum seconds between two reports of a node; 0 if the agent may choose."""
    return LONG_INTERVAL_S if nodes > MANY_NODES else 0.0
