"""A node: one agent, and the ranks that it reports or reported.

A rank belongs for a while to the agent that reported it last. The name of a node proves nothing:
every holder of an agent's token can report under it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from watchtower.core.fleet.generation import RankRecord
from watchtower.core.fleet.observations import NodeObservations
from watchtower.core.fleet.sizes import count_gaps
from watchtower.wire.bounds import MAX_RANKS_PER_NODE
from watchtower.wire.report import AgentGaps, ProcessId, Report

HOLD_S, HOLD_INTERVALS = 3.0, 1.5
"""For this many seconds or report intervals after an agent's last report, its ranks belong to it.
After that, another agent with the same node name may report them, such as a restarted agent."""


@dataclass(slots=True)
class NodeRecord:
    """One node's agent."""

    agent_id: str
    seen_at: float
    interval_s: float
    gaps: AgentGaps
    hold_s: float = 0.0
    """Seconds after its last report during which no other agent may report this agent's ranks."""
    shared_at: float = float("-inf")
    """When two agents last alternated in reporting under this name."""
    previous_agent: str = ""
    contained: bool = False
    """Whether the agent sees only the processes of its own container."""
    ranks: set[tuple[str, int]] = field(default_factory=set)
    """(job, rank) of the ranks on this node that are reported, or were reported and have not ended
    since."""
    missing: tuple[ProcessId, ...] = ()
    """Live processes of these ranks that the report lacks, and whose end its agent can see."""
    observations: NodeObservations = field(default_factory=NodeObservations)

    @classmethod
    def of(
        cls, report: Report, previous: NodeRecord | None, now: float, silence_s: float
    ) -> NodeRecord:
        """Return the record of a node that has just reported; `previous` is its last record."""
        hold_s = min(max(HOLD_S, HOLD_INTERVALS * report.interval_s), silence_s)
        hold_s = 0.0 if report.stopping else hold_s
        node = cls(
            report.agent_id,
            now,
            report.interval_s,
            report.limits,
            hold_s,
            contained=report.contained,
        )
        known = previous.observations if previous is not None else NodeObservations()
        held_s = previous.hold_s if previous is not None else 0.0
        node.observations = known.updated(report, now, held_s)
        if previous is not None:
            node._compare_agents(previous, now)
        return node

    def _compare_agents(self, previous: NodeRecord, now: float) -> None:
        """Record whether two agents report under one name.

        They do if an earlier agent reports again. A restarted agent has a new id.
        """
        self.previous_agent, self.shared_at = previous.previous_agent, previous.shared_at
        if self.agent_id != previous.agent_id:
            if self.agent_id == previous.previous_agent:
                self.shared_at = now
            self.previous_agent = previous.agent_id

    def note_missing(
        self, live: Mapping[tuple[str, int], RankRecord], previous: NodeRecord, report: Report
    ) -> list[RankRecord]:
        """Record the live ranks of this node that its report lacks.

        Returns those whose process does not exist, as the agent has seen. Any other rank may be
        alive: an agent that was restarted may have other rights or another `--match`.
        """
        ended, asked, gone = list[RankRecord](), list[ProcessId](), set(report.gone)
        for item, record in live.items():
            process = ProcessId(pid=record.key.pid, start_time=record.key.start_time)
            is_asked = self._can_see_the_end_of(record)
            if is_asked and process in gone:
                ended.append(record)
                continue
            self.ranks.add(item)
            if is_asked:
                asked.append(process)
        asked.sort(key=set(previous.missing).__contains__)  # if there are too many, each has a turn
        self.missing = tuple(asked[:MAX_RANKS_PER_NODE])
        return ended

    def is_held_by_another(self, record: RankRecord, now: float) -> bool:
        """Return whether a different agent than this one has just reported the rank."""
        return record.reporter not in ("", self.agent_id) and now < record.held_until

    def _can_see_the_end_of(self, record: RankRecord) -> bool:
        """Return whether this agent can see that the process of a rank does not exist any more.

        The pids of two pid namespaces cannot be compared. If a container was replaced, its pid
        namespace ended, and with it each process in it. Of two agents that share the name of a
        node, each may run on a machine of its own.
        """
        if record.contained is not self.contained or self.is_held_by_another(record, self.seen_at):
            return False
        return record.reporter == self.agent_id or self.shared_at <= record.seen_at

    @property
    def droppable_bytes(self) -> int:
        """Bytes of the agent's observations, and of its sentences about itself."""
        return count_gaps(self.gaps) + self.observations.bytes

    def drop(self, excess: int) -> None:
        """Drop the observations and the agent's sentences, until its next report."""
        self.gaps, self.observations = AgentGaps(), NodeObservations()
