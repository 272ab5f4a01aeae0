"""What a job may know of the agents that report its ranks.

The name of a node proves nothing, because every holder of an agent's token can report under it. The
boot of the node's kernel is different: an agent elsewhere does not know it. The process ids of two
boots cannot be compared, so an agent of another boot knows nothing about these processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from watchtower.jobs.ranks import CHARACTER_BYTES, RankRecord, Reporter
from watchtower.wire.observations import Observation
from watchtower.wire.report import AgentGaps

OBSERVATION_BYTES = 512
"""Memory of one observation with short words."""


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


def count_gaps(gaps: AgentGaps) -> int:
    """Return the bytes of the sentences that an agent reports about itself; 0 without any."""
    return CHARACTER_BYTES * sum(map(len, gaps.sentences()))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwatchedRanks:
    """Processes of one node, one job and one reason that are not watched."""

    reason: str
    job: str
    """Label of the job; empty if it is not known."""
    owner: str
    """As in a report; empty if it is not known."""
    count: int
    pids: tuple[int, ...]
    """The first of them."""
    text: str
    """A sentence: how many, why, and what to do."""


@dataclass(slots=True)
class NodeReport:
    """What the agent of a node last reported, besides its ranks."""

    reporter: Reporter
    gaps: AgentGaps
    release: str = ""
    """Release of the agent; empty if it is not known."""
    unwatched: tuple[UnwatchedRanks, ...] = ()
    """Processes of its last report that are not watched."""
    observations: NodeObservations = field(default_factory=NodeObservations)
    configuration: str = ""
    """Digest of the configuration of the node; empty if it is not known."""

    @property
    def seen_at(self) -> float:
        """When an agent last reported under the name of this node."""
        return self.reporter.seen_at

    @property
    def interval_s(self) -> float:
        """Seconds between the reports of that agent."""
        return self.reporter.interval_s


def find_last_report(record: RankRecord, nodes: Mapping[str, NodeReport]) -> Reporter | None:
    """Return the last report of a rank's agent, or of a later agent on the same node.

    None if the node is not known any more.
    """
    node = nodes.get(record.key.node)
    if node is None or record.reporter.may_be_followed_by(node.reporter):
        return node.reporter if node is not None else None
    return record.reporter


def find_last_reports(
    records: Iterable[RankRecord], nodes: Mapping[str, NodeReport]
) -> dict[str, Reporter | None]:
    """Return `find_last_report` by node; the latest if agents of two boots reported these ranks."""
    last: dict[str, Reporter | None] = {}
    for record in records:
        name = record.key.node
        known = last.get(name)
        if known is not None and known.seen_at >= record.seen_at:
            continue
        found = find_last_report(record, nodes)
        if known is None or (found is not None and found.seen_at > known.seen_at):
            last[name] = found
    return last
