"""Half-started jobs that hold each other's places.

A scheduler that places pods or tasks one by one may give two jobs a part of their nodes each. Then
both wait for what the other holds, and neither will ever have all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import ceil, inf

from watchtower.evidence.case import PlaceHolder
from watchtower.evidence.gpus import GPU_PATTERN
from watchtower.evidence.launchers import expand_nodes, read_meeting, short_name
from watchtower.evidence.observed import GPU_SUBJECTS
from watchtower.fleet.nodes import NodeRecord
from watchtower.jobs.case_inputs import CaseInputs
from watchtower.jobs.detector import Detector
from watchtower.jobs.keeper import Keeper
from watchtower.service.sharing import keep_fairly
from watchtower.wire.observations import Observation
from watchtower.wire.report import FOR_RANKS, Report, WaitingLauncher
from watchtower.wire.verdict import Cause

MAX_HALF_STARTED = 64
"""Jobs that are compared, each with every other one. They are divided fairly by owner."""

START_SLACK_S = 5.0
"""Seconds by which a job may seem to be older than the launcher that has started it."""

SETTLE_S = 60.0
"""For so many seconds, ranks and launchers of a job may come one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfStarted:
    """A job that has a part of its nodes, and has made no step."""

    job: str
    owner: str
    holds: frozenset[str]
    """Nodes on which its launchers or ranks wait."""
    lacks: int
    """How many nodes are missing, as far as known."""
    missing: frozenset[str]
    """Their names up to the first dot, if the scheduler has chosen them."""
    endpoint: str = ""
    """Where its launchers meet, if it has no ranks."""
    since: float
    """When the last of its launchers or ranks came."""

    def waits_for(self, other: HalfStarted, free: Set[str]) -> bool:
        """Return whether the other job holds what this one lacks. `free`: nodes with room."""
        if self.missing:
            return any(short_name(name) in self.missing for name in other.holds - free)
        return not free and bool(other.holds - self.holds)


def find_deadlocks(jobs: Sequence[HalfStarted], free: Set[str]) -> list[tuple[HalfStarted, ...]]:
    """Return the groups of jobs of which each waits for another one of its group.

    The places of a group must be enough for one of its jobs: else it waits for other jobs, too.
    """
    behind = {
        each.job: [other for other in jobs if other is not each and each.waits_for(other, free)]
        for each in jobs
    }
    reached = {each.job: _reach(each.job, behind) for each in jobs}
    groups = dict[frozenset[str], tuple[HalfStarted, ...]]()
    for each in jobs:
        group = tuple(o for o in jobs if o.job in reached[each.job] and each.job in reached[o.job])
        if len(group) > 1 and any(_has_room(one, group) for one in group):
            groups[frozenset(one.job for one in group)] = group
    return list(groups.values())


def _reach(job: str, behind: Mapping[str, Sequence[HalfStarted]]) -> frozenset[str]:
    found, waiting = set[str](), [job]
    while waiting:
        for other in behind[waiting.pop()]:
            if other.job not in found:
                found.add(other.job)
                waiting.append(other.job)
    return frozenset(found)


def _has_room(job: HalfStarted, group: Iterable[HalfStarted]) -> bool:
    held = frozenset[str]().union(*(each.holds for each in group))
    return job.lacks <= len(held - job.holds)


def list_deadlocks(
    jobs: Mapping[str, Keeper], nodes: Mapping[str, NodeRecord], detector: Detector, now: float
) -> list[tuple[HalfStarted, ...]]:
    """Return the groups of jobs, of all that a tower knows, that hold each other's places."""
    live = {
        name: node for name, node in nodes.items() if not detector.is_silent(node.reporter, now)
    }
    least_s = min(SETTLE_S, detector.policy.startup_grace_s / 2)
    found = [half for job in jobs.values() if (half := _read(job, live, now, least_s)) is not None]
    chosen = keep_fairly(((each.owner, each.job) for each in found), MAX_HALF_STARTED)
    found = sorted((each for each in found if each.job in chosen), key=lambda each: each.job)
    if len(found) < 2:
        return []
    return find_deadlocks(found, _find_free(found, jobs, live, now))


def find_holders(
    job: str,
    jobs: Mapping[str, Keeper],
    nodes: Mapping[str, NodeRecord],
    detector: Detector,
    now: float,
) -> tuple[PlaceHolder, ...]:
    """Return the jobs that hold the places of this job, while it holds places of them."""
    keeper = jobs.get(job)
    if keeper is None or not _lacks_any(keeper):
        return ()
    return tuple(
        PlaceHolder(
            job=each.job,
            nodes=tuple(sorted(each.holds)),
            lacks=each.lacks,
            endpoint=each.endpoint,
        )
        for group in list_deadlocks(jobs, nodes, detector, now)
        if any(each.job == job for each in group)
        for each in group
        if each.job != job
    )


def with_holders(
    inputs: CaseInputs,
    jobs: Mapping[str, Keeper],
    nodes: Mapping[str, NodeRecord],
    detector: Detector,
) -> CaseInputs:
    """Return the inputs of a case with the jobs that hold the places of its job."""
    holders = find_holders(inputs.job, jobs, nodes, detector, inputs.now)
    return replace(inputs, holders=holders) if holders else inputs


def list_waiting(
    report: Report, seen_at: float, jobs: Collection[Keeper]
) -> Iterator[tuple[WaitingLauncher, float]]:
    """Yield the launchers of a report that wait, and when each was started."""
    for each in report.waiting:
        began_at = seen_at - each.waits_s
        if not _has_started_ranks(each, began_at, jobs):
            yield each, began_at


def _has_started_ranks(launcher: WaitingLauncher, began_at: float, jobs: Iterable[Keeper]) -> bool:
    """Return whether ranks that a launcher starts elsewhere may be those of a job of its owner.

    Their job may have another name: what names it is set for them only. `began_at`: when the
    launcher was started.
    """
    if launcher.waits_for != FOR_RANKS:
        return False
    nodes = {short_name(name) for name in expand_nodes(launcher.node_list)}
    for job in jobs:
        if job.owner != launcher.owner or job.attempt.began_at < began_at - START_SLACK_S:
            continue
        attempt = job.attempt
        used = {each.key.node for each in attempt.live()} or attempt.launchers.list_on_nodes()
        if used and (not nodes or any(short_name(name) in nodes for name in used)):
            return True
    return False


def _lacks_any(job: Keeper) -> bool:
    attempt = job.attempt
    if not attempt.ranks:
        return bool(attempt.launchers.waiting)
    return len(attempt.ranks) < attempt.world_size


def _read(
    job: Keeper, live: Mapping[str, NodeRecord], now: float, least_s: float
) -> HalfStarted | None:
    """Return what a job has and lacks; None if it lacks nothing, or may still be starting."""
    if not _lacks_any(job):
        return None
    half = _read_ranks(job) if job.attempt.ranks else _read_launchers(job, live, now)
    if half is None or not half.lacks or not half.holds or not half.holds <= live.keys():
        return None
    return half if now - half.since >= least_s else None


def _read_launchers(job: Keeper, live: Mapping[str, NodeRecord], now: float) -> HalfStarted | None:
    waiting = job.attempt.launchers
    seen = waiting.list_evidence(now, waiting.waiting.keys() - live.keys())
    if not seen:
        return None
    meeting = read_meeting(seen)
    return HalfStarted(
        job=job.name,
        owner=job.sharer,
        holds=frozenset(meeting.joined),
        lacks=meeting.lacking,
        missing=frozenset(map(short_name, meeting.missing)),
        endpoint=next(iter(meeting.endpoints), ""),
        since=now - meeting.since_last_s,
    )


def _read_ranks(job: Keeper) -> HalfStarted | None:
    attempt, known = job.attempt, job.judgement
    live = list(attempt.live())
    # Without heartbeats it may train, with ranks that are not watched.
    has_begun = any(each.vitals.beat is None or each.vitals.beat.step >= 0 for each in live)
    diagnosis = known.watch.diagnosis if known is not None else None
    is_named = diagnosis is not None and diagnosis.cause is Cause.NEVER_STARTED
    if not live or (has_begun and not is_named):
        return None
    holds = [each.key.node for each in live]
    most = max(holds.count(name) for name in set(holds))
    return HalfStarted(
        job=job.name,
        owner=job.sharer,
        holds=frozenset(holds),
        lacks=ceil((attempt.world_size - len(attempt.ranks)) / most),
        missing=frozenset(),
        since=max(each.first_seen_at for each in live),
    )


def _find_free(
    found: Sequence[HalfStarted],
    jobs: Mapping[str, Keeper],
    live: Mapping[str, NodeRecord],
    now: float,
) -> frozenset[str]:
    """Return the nodes with room for ranks. If these jobs are on nodes with GPUs, only such."""
    held = frozenset[str]().union(*(each.holds for each in found))
    devices = {name: list(_list_gpus(node.observations.aged(now))) for name, node in live.items()}
    needs_gpus = any(devices[name] for name in held)
    free = set[str]()
    for name, node in live.items():
        taken = _count_taken(name, node, jobs)
        unused = len(devices[name]) - max(sum(devices[name]), taken)
        if unused > 0 or (not taken and not needs_gpus):
            free.add(name)
    return frozenset(free)


def _list_gpus(observations: Sequence[Observation]) -> Iterator[bool]:
    """Yield, for each GPU of a node, whether a process uses it."""
    used = {
        each.subject
        for each in observations
        if each.pid is not None and each.subject.startswith(GPU_SUBJECTS)
    }
    for each in observations:
        if each.family == GPU_PATTERN:
            yield each.subject in used


def _count_taken(name: str, node: NodeRecord, jobs: Mapping[str, Keeper]) -> float:
    """Return how many ranks a node has, or will have when the launchers on it start them."""
    taken: float = len(node.ranks)
    for label in node.waits_in:
        launcher = jobs[label].attempt.launchers.waiting.get(name) if label in jobs else None
        if launcher is not None:
            taken += launcher[0].processes or inf
    return taken
