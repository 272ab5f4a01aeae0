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

BURST = 16
"""Reports that may come early. An agent also reports when a rank has just ended: those of a large
GPU node may end one after the other. If there are more, some reports are dropped. The next report
contains the same endings."""


class ReportPaces:
    """Decides which reports come too early."""

    def __init__(self, most: int) -> None:
        """At most `most` agents are known. The one that reported least recently is dropped."""
        self._most = most
        self._early: dict[tuple[str, str], tuple[float, float]] = {}
        """By agent: how many reports came early, less what has passed since, and at which time."""

    def may_report(
        self, agent: tuple[str, str], asked_s: float, now: float, *, is_last: bool = False
    ) -> bool:
        """Return whether a report of an agent is processed now, and count it if so.

        `agent` is the name of a node and the id of its agent, which other agents do not know.
        `asked_s` is the interval that the tower requests from agents. `is_last`: the agent stops,
        so that nothing would repeat this report. One more report is allowed for it.
        """
        count, at = self._early.pop(agent, (0.0, now))
        count = max(0.0, count - (now - at) / max(asked_s, LEAST_INTERVAL_S))
        may = count <= BURST - 1 + is_last
        self._early[agent] = count + may, now
        if len(self._early) > self._most:
            del self._early[next(iter(self._early))]
        return may
