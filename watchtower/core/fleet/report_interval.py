"""Decides how often agents report: less often when there are thousands of them.

Reports that an agent sends more often than that are not processed.

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


LEAST_INTERVAL_S = 0.1
"""Seconds between two reports of an agent, if the tower requests no interval: the shortest one that
an agent can be set to."""

BURST = 5
"""Reports that may come early. An agent also reports when a rank has just ended."""


class ReportPaces:
    """Decides which reports come too early. The state of an agent is one number."""

    def __init__(self, most: int) -> None:
        """At most `most` agents are known. The one that reported least recently is dropped."""
        self._most = most
        self._due_at: dict[tuple[str, str], float] = {}
        """By agent: when its next report is due if it never reports early."""

    def may_report(self, agent: tuple[str, str], asked_s: float, now: float) -> bool:
        """Return whether a report of an agent is processed now, and count it if so.

        `agent` is the name of a node and the id of its agent, which other agents do not know.
        `asked_s` is the interval that the tower requests from agents.
        """
        interval_s = max(asked_s, LEAST_INTERVAL_S)
        due_at = max(self._due_at.pop(agent, now), now)
        is_early = due_at - now > (BURST - 1) * interval_s
        self._due_at[agent] = due_at if is_early else due_at + interval_s
        if len(self._due_at) > self._most:
            del self._due_at[next(iter(self._due_at))]
        return not is_early
