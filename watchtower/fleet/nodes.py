"""A node: one agent, and the ranks that it reports or reported.

A rank belongs for a while to the agent that reported it last. The name of a node proves nothing:
every holder of an agent's token can report under it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from watchtower.jobs.agents import NodeObservations, NodeReport, count_gaps
from watchtower.jobs.keeper import Keeper
from watchtower.jobs.ranks import CHARACTER_BYTES, RankRecord, Reporter
from watchtower.wire.bounds import MAX_RANKS_PER_NODE
from watchtower.wire.report import AgentGaps, ProcessId, Report

SILENT_INTERVALS = 3
"""An agent is silent after this many report intervals, but at least after `silence_s`."""

HOLD_S, HOLD_INTERVALS = 3.0, 1.5
"""For this many seconds or report intervals after an agent's last report, its ranks belong to it.
After that, another agent with the same node name may report them, such as a restarted agent."""


class HeldRank(NamedTuple):
    """A rank that a process of a report holds."""

    label: str
    """Label of its job."""
    record: RankRecord


@dataclass(slots=True)
class NodeRecord(NodeReport):
    """One node's agent, and its ranks."""

    shared_at: float = float("-inf")
    """When two agents last alternated in reporting under this name."""
    previous_agent: str = ""
    ranks: set[tuple[str, int]] = field(default_factory=set)
    """(job, rank) of the ranks on this node that are reported, or were reported and have not ended
    since."""
    missing: tuple[ProcessId, ...] = ()
    """Live processes of these ranks that the report lacks, and whose end its agent can see."""
    labels: Set[str] = frozenset()
    """The labels of the jobs of `ranks`."""
    waits_in: Set[str] = frozenset()
    """The labels of the jobs without ranks whose launchers wait on this node."""
    held: tuple[HeldRank, ...] = ()
    """The ranks that processes of the last report hold, in its order. Other ranks of `ranks` were
    missing in it."""
    over: set[tuple[int, int]] = field(default_factory=set)
    """Ended processes of the last report that hold no rank, and will hold none."""
    is_settled: bool = False
    """Whether each process of the last report is in `held` or `over`."""

    @classmethod
    def of(
        cls, report: Report, previous: NodeRecord | None, now: float, silence_s: float
    ) -> NodeRecord:
        """Return the record of a node that has just reported; `previous` is its last record."""
        hold_s = min(max(HOLD_S, HOLD_INTERVALS * report.interval_s), silence_s)
        reporter = Reporter(
            agent_id=report.agent_id,
            boot=report.boot,
            contained=report.contained,
            seen_at=now,
            interval_s=report.interval_s,
            held_until=now if report.stopping else now + hold_s,
            silent_from=now + max(silence_s, SILENT_INTERVALS * report.interval_s),
        )
        node = cls(reporter, report.limits, report.release)
        node.configuration = report.configuration
        known = previous.observations if previous is not None else NodeObservations()
        node.observations = known.updated(report.observations, reporter)
        if previous is not None:
            node._compare_agents(previous, now)
        return node

    def _compare_agents(self, previous: NodeRecord, now: float) -> None:
        """Record whether two agents report under one name.

        They do if an earlier agent reports again. A restarted agent has a new id. Agents of
        another boot do not count.
        """
        self.previous_agent, self.shared_at = previous.previous_agent, previous.shared_at
        agent_id, before = self.reporter.agent_id, previous.reporter
        if agent_id != before.agent_id and before.may_be_followed_by(self.reporter):
            if agent_id == previous.previous_agent:
                self.shared_at = now
            self.previous_agent = before.agent_id

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
        """Return whether the rank belongs to a different agent than this one."""
        return record.reporter.holds_against(self.reporter, now)

    def _can_see_the_end_of(self, record: RankRecord) -> bool:
        """Return whether this agent can see that the process of a rank does not exist any more.

        The pids of two boots or of two pid namespaces cannot be compared. If a container was
        replaced, its pid namespace ended, and with it each process in it. Two agents that
        share the name of a node may run on two machines.
        """
        before, mine = record.reporter, self.reporter
        is_comparable = before.contained is mine.contained and before.may_be_followed_by(mine)
        if not is_comparable or before.holds_against(mine, mine.seen_at):
            return False
        return before.agent_id == mine.agent_id or self.shared_at <= record.seen_at

    def find_over(self, report: Report, previous: NodeRecord) -> set[tuple[int, int]]:
        """Return the processes of a report that were over in the one before it, and still are."""
        if not previous.over or self.reporter.agent_id != previous.reporter.agent_id:
            return set()
        ended = {(each.pid, each.start_time) for each in report.ranks if each.ended is not None}
        return previous.over & ended

    def forget_processes(self) -> None:
        """Forget the processes of its last report: its next report is placed anew."""
        self.held, self.over, self.is_settled = (), set(), False

    @property
    def droppable_bytes(self) -> int:
        """Bytes of the agent's observations, of its sentences about itself, and of the sentences
        about ranks that are not watched."""
        texts = sum(len(each.text) + len(each.job) + len(each.owner) for each in self.unwatched)
        return count_gaps(self.gaps) + self.observations.bytes + CHARACTER_BYTES * texts

    def drop(self, excess: int) -> None:
        """Drop the observations and the sentences, until its next report."""
        self.gaps, self.observations, self.unwatched = AgentGaps(), NodeObservations(), ()


MAX_NODES_CHECKED = 256
"""Nodes that are checked for ranks to find a silent one, so that a refusal costs little."""

NODE_MEMORY_S = 3600.0
"""A node without ranks that has been silent for this long is no longer part of the fleet."""


def find_old_nodes(nodes: Mapping[str, NodeRecord], jobs: Iterable[Keeper], now: float) -> set[str]:
    """Return the nodes that are no longer part of the fleet."""
    old = {name for name, node in nodes.items() if now - node.seen_at > NODE_MEMORY_S}
    if old:
        old -= {record.key.node for job in jobs for record in job.attempt.ranks.values()}
    return old


def find_silent_node(longest_silent_first: Mapping[str, NodeRecord]) -> str | None:
    """Return the node without ranks that was silent for longest; None if the first ones have ranks.

    A holder of an agent's token can invent nodes. They must not keep a real one out.
    """
    first = islice(longest_silent_first.items(), MAX_NODES_CHECKED)
    return next((name for name, node in first if not node.ranks), None)
