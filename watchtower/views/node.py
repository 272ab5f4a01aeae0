"""Nodes, their agents, and the processes on them that are not watched."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from watchtower.jobs.agents import UnwatchedRanks
from watchtower.service.sharing import by_turns
from watchtower.views import copy_fields
from watchtower.views.moment import Moment
from watchtower.wire.drills import is_drill
from watchtower.wire.report import OTHER_REASONS


class NodeCounts(NamedTuple):
    """The incidents of the last 30 days, by node."""

    blamed: Counter[str]
    """Incidents that the node was to blame for."""
    named: Counter[str]
    """Incidents whose verdicts name ranks on the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHead:
    """What is known of a node everywhere."""

    node: str
    has_agent: bool
    """Whether an agent has reported since the tower was started, and was not dropped. Other nodes
    are listed for their incidents."""
    release: str
    """Release of the agent; empty if the agent does not report it."""
    rank_count: int
    """Number of ranks that it monitors."""
    job_names: list[str]
    """Jobs of these ranks, at most 8."""
    limits: list[str]
    """Limits of what the agent observes, as sentences."""
    incident_count: int
    """Incidents of the last 30 days that the node was to blame for: the node, a GPU or the network
    had to be repaired."""
    named_count: int
    """Incidents of the last 30 days whose verdicts name ranks on the node, whatever the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOverview(NodeHead):
    """One node and its agent, for a page: nothing in it changes with time alone."""

    silent_since: float | None
    """UNIX seconds of the last report of a silent agent; None while it reports."""
    hung_jobs: frozenset[str] = frozenset()
    """Those of `job_names` with an open incident."""


MAX_JOBS_OF_NODE = 8
"""Jobs that are named for one node. A node has as many GPUs."""


def list_nodes(moment: Moment, incidents: NodeCounts) -> list[NodeOverview]:
    """Return all nodes: those with an agent, by name, then others that had incidents."""
    now, detector = moment.now, moment.detector
    blamed, named = incidents
    nodes = []
    for name, node in sorted(moment.nodes.items()):
        jobs = sorted({job for job, _ in node.ranks}, key=lambda job: (is_drill(job), job))
        is_silent = detector.is_silent(node.reporter, now)
        nodes.append(
            NodeOverview(
                node=name,
                has_agent=True,
                release=node.release,
                silent_since=moment.wall_of(node.seen_at) if is_silent else None,
                rank_count=len(node.ranks),
                job_names=jobs[:MAX_JOBS_OF_NODE],
                hung_jobs=frozenset(filter(moment.has_open_incident, jobs[:MAX_JOBS_OF_NODE])),
                limits=list(node.gaps.sentences()),
                incident_count=blamed[name],
                named_count=named[name],
            )
        )
    return nodes + [
        _without_agent(name, blamed[name], named[name])
        for name in sorted(blamed.keys() | named.keys())
        if name not in moment.nodes
    ]


def _without_agent(name: str, incidents: int, named: int) -> NodeOverview:
    return NodeOverview(
        node=name,
        has_agent=False,
        release="",
        silent_since=None,
        rank_count=0,
        job_names=[],
        limits=[],
        incident_count=incidents,
        named_count=named,
    )


def sort_nodes(nodes: Sequence[NodeOverview]) -> list[NodeOverview]:
    """Return the nodes, the worst first: silent ones, then by incidents, then by gaps."""

    def key(node: NodeOverview) -> tuple[bool, int, int, int, str]:
        incidents = -node.incident_count, -node.named_count
        return node.silent_since is None, *incidents, -len(node.limits), node.node

    return sorted(nodes, key=key)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSummary(NodeHead):
    """One node, its agent and its incidents."""

    is_silent: bool
    """Whether the agent has stopped reporting."""
    silent_for_s: float | None
    """Seconds since the last report; null without an agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeList:
    """Nodes, the worst first: silent ones, then by incidents, then by limits."""

    items: list[NodeSummary]
    connected: int
    """Number of agents that report, also of those that `limit` leaves out."""
    silent: int
    """Number of agents that stopped reporting."""
    rank_count: int
    """Number of ranks that reporting agents monitor."""


def view_nodes(moment: Moment, incidents: NodeCounts, limit: int) -> NodeList:
    """Return at most `limit` nodes, and the numbers of all nodes."""
    nodes = list_nodes(moment, incidents)
    silent = sum(each.silent_since is not None for each in nodes)
    reporting = [each for each in nodes if each.has_agent and each.silent_since is None]
    return NodeList(
        items=[_view(moment, each) for each in sort_nodes(nodes)[:limit]],
        connected=len(reporting),
        silent=silent,
        rank_count=sum(each.rank_count for each in reporting),
    )


def _view(moment: Moment, overview: NodeOverview) -> NodeSummary:
    node = moment.nodes.get(overview.node)
    return NodeSummary(
        **copy_fields(overview, NodeHead),
        is_silent=overview.silent_since is not None,
        silent_for_s=round(moment.now - node.seen_at, 2) if node else None,
    )


MAX_SHOWN = 100
"""Entries in one answer. Owners take turns. The others are counted."""

MAX_REASONS = 16
"""Reasons that the metric has as labels. Agents of later releases may report new ones."""

_REASON = re.compile(r"[a-z_]{1,32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwatchedView:
    """Processes of one node, one job and one reason that are not watched."""

    node: str
    job: str
    """Empty if it is not known."""
    owner: str
    reason: str
    """A word such as "second_claim" or "over_limit"."""
    count: int
    """Number of processes."""
    pids: list[int]
    """At most eight of them."""
    text: str
    """What is not watched, why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwatchedList:
    """Processes that agents recognize as ranks and that are not watched."""

    items: list[UnwatchedView]
    rank_count: int
    """Number of these processes, also of those that `items` leaves out."""


ALL_WATCHED = UnwatchedList(items=[], rank_count=0)


def list_unwatched(
    moment: Moment, job: str | None = None, *, drills: bool = False
) -> UnwatchedList:
    """Return what is not watched: of one job, or of all."""
    found = [
        UnwatchedView(
            node=node,
            job=each.job,
            owner=each.owner,
            reason=each.reason,
            count=each.count,
            pids=list(each.pids),
            text=each.text,
        )
        for node, each in _find(moment)
        if each.job == job or (job is None and (drills or not is_drill(each.job)))
    ]
    found.sort(key=lambda each: (-each.count, each.node, each.job, each.reason))
    items = list(by_turns((each.owner, each) for each in found))[:MAX_SHOWN]
    return UnwatchedList(items=items, rank_count=sum(each.count for each in found))


def count_unwatched(moment: Moment) -> dict[str, int]:
    """Return the number of ranks that are not watched, by reason. Drills do not count."""
    counts = Counter[str]()
    for _, each in _find(moment):
        if not is_drill(each.job):
            known = _REASON.fullmatch(each.reason) is not None
            counts[each.reason if known else OTHER_REASONS] += each.count
    most = dict(counts.most_common(MAX_REASONS))
    rest = counts.total() - sum(most.values())
    return {**most, OTHER_REASONS: most.get(OTHER_REASONS, 0) + rest} if rest else most


def _find(moment: Moment) -> Iterator[tuple[str, UnwatchedRanks]]:
    """Yield the node and the entry of all agents that report."""
    now = moment.now
    for name, node in moment.nodes.items():
        if node.unwatched and not moment.detector.is_silent(node.reporter, now):
            for each in node.unwatched:
                yield name, each
