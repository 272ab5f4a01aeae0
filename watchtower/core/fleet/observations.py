"""The observations of a node, with the moment of the report that contained them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from watchtower.wire.observations import Observation
from watchtower.wire.report import Report

OBSERVATION_BYTES = 512
"""Memory of one observation with short words."""

CHARACTER_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObservations:
    """What one agent observed. It is not interpreted here."""

    items: tuple[Observation, ...] = ()
    agent_id: str = ""
    at: float = float("-inf")

    def updated(self, report: Report, now: float, hold_s: float) -> NodeObservations:
        """Return the observations after a report.

        Those of another agent under the same node name do not count until the first agent has not
        reported for `hold_s` seconds: every holder of an agent's token can use the name of a node.
        """
        if self.agent_id not in ("", report.agent_id) and now - self.at < hold_s:
            return self
        return NodeObservations(items=report.observations, agent_id=report.agent_id, at=now)

    def aged(self, now: float) -> tuple[Observation, ...]:
        """Return the observations with their ages at `now`."""
        elapsed_s = max(0.0, now - self.at)
        return tuple(replace(item, age_s=item.age_s + elapsed_s) for item in self.items)

    @property
    def bytes(self) -> int:
        """Upper estimate of their memory."""
        texts = sum(len(item.text) + len(item.subject) + len(item.name) for item in self.items)
        return OBSERVATION_BYTES * len(self.items) + CHARACTER_BYTES * texts
