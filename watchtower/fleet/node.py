"""A node: one agent, and the ranks that it reports or reported.

A rank belongs for a while to the agent that reported it last. The name of a node proves nothing:
every holder of an agent's token can report under it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from watchtower.fleet.generation import RankRecord
from watchtower.fleet.observations import NodeObservations
from watchtower.fleet.reporter import Reporter
from watchtower.fleet.sizes import CHARACTER_BYTES, count_gaps
from watchtower.wire.bounds import MAX_RANKS_PER_NODE
from watchtower.wire.report import AgentGaps, ProcessId, Report

SILENT_INTERVALS = 3
"""An agent is silent after this many report intervals, but at least after `silence_s`."""

HOLD_S, HOLD_INTERVALS = 3.0, 1.5
"""For this many seconds or report intervals after an agent's last report, its ranks belong to it.
After that, another agent with the same node name may report them, such as a restarted agent."""


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


class HeldRank(NamedTuple):
    """A rank that a process of a report holds."""

    label: str
    """Label of its job."""
    record: RankRecord


@dataclass(slots=True)
class NodeRecord:
    """One node's agent."""

    reporter: Reporter
    gaps: AgentGaps
    release: str = ""
    """Release of the agent; empty if it is not known."""
    shared_at: float = float("-inf")
    """When two agents last alternated in reporting under this name."""
    previous_agent: str = ""
    ranks: set[tuple[str, int]] = field(default_factory=set)
    """(job, rank) of the ranks on this node that are reported, or were reported and have not ended
    since."""
    missing: tuple[ProcessId, ...] = ()
    """Live processes of these ranks that the report lacks, and whose end its agent can see."""
    unwatched: tuple[UnwatchedRanks, ...] = ()
    """Processes of its last report that are not watched."""
    observations: NodeObservations = field(default_factory=NodeObservations)
    labels: Set[str] = frozenset()
    """The labels of the jobs of `ranks`."""
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
    def seen_at(self) -> float:
        """When an agent last reported under the name of this node."""
        return self.reporter.seen_at

    @property
    def interval_s(self) -> float:
        """Seconds between the reports of that agent."""
        return self.reporter.interval_s

    @property
    def droppable_bytes(self) -> int:
        """Bytes of the agent's observations, of its sentences about itself, and of the sentences
        about ranks that are not watched."""
        texts = sum(len(each.text) + len(each.job) + len(each.owner) for each in self.unwatched)
        return count_gaps(self.gaps) + self.observations.bytes + CHARACTER_BYTES * texts

    def drop(self, excess: int) -> None:
        """Drop the observations and the sentences, until its next report."""
        self.gaps, self.observations, self.unwatched = AgentGaps(), NodeObservations(), ()


def find_last_report(record: RankRecord, nodes: Mapping[str, NodeRecord]) -> Reporter | None:
    """Return the last report of a rank's agent, or of a later agent on the same node.

    None if the node is not known any more.
    """
    node = nodes.get(record.key.node)
    if node is None or record.reporter.may_be_followed_by(node.reporter):
        return node.reporter if node is not None else None
    return record.reporter


def find_last_reports(
    records: Iterable[RankRecord], nodes: Mapping[str, NodeRecord]
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
