"""The observations of a node, with the moment of the report that contained them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from watchtower.fleet.reporter import Reporter
from watchtower.wire.observations import Observation

OBSERVATION_BYTES = 512
"""Memory of one observation with short words."""

CHARACTER_BYTES = 4
"""Memory of one character of its texts, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObservations:
    """The observations of one agent. They are not interpreted here."""

    items: tuple[Observation, ...] = ()
    reporter: Reporter | None = None
    """The agent that sent them; None before the first report."""

    def updated(self, items: tuple[Observation, ...], reporter: Reporter) -> NodeObservations:
        """Return the observations after a report of `reporter` that contained `items`.

        Those of another agent under the same node name do not count while the node belongs to the
        first one: every holder of an agent's token can use the name of a node.
        """
        if self.reporter is not None and self.reporter.holds_against(reporter, reporter.seen_at):
            return self
        return NodeObservations(items=items, reporter=reporter)

    def aged(self, now: float) -> tuple[Observation, ...]:
        """Return the observations with their ages at `now`."""
        if self.reporter is None:
            return ()
        elapsed_s = max(0.0, now - self.reporter.seen_at)
        return tuple(replace(item, age_s=item.age_s + elapsed_s) for item in self.items)

    @property
    def bytes(self) -> int:
        """Upper estimate of their memory."""
        texts = sum(len(item.text) + len(item.subject) + len(item.name) for item in self.items)
        return OBSERVATION_BYTES * len(self.items) + CHARACTER_BYTES * texts
