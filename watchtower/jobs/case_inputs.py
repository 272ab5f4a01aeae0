"""Collects the inputs of a case: all evidence about a job at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from watchtower.evidence.case import (
    Case,
    CaseParts,
    DumpPlace,
    LauncherEvidence,
    NodeEvidence,
    PlaceHolder,
    Presence,
    RankEvidence,
    age_beat,
)
from watchtower.jobs.agents import NodeReport, UnwatchedRanks, find_last_report, find_last_reports
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.condition import Stall, Why
from watchtower.jobs.detector import Detector
from watchtower.jobs.ranks import DumpBody, RankRecord, Reporter
from watchtower.jobs.wait_counts import WaitCounts
from watchtower.wire.report import Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseInputs:
    """The inputs of a case. Later reports and dumps do not change them.

    Collecting the inputs takes a hundredth of the time that making the case takes. Therefore
    another process makes the case.
    """

    job: str
    generation: int
    world_size: int
    missing: tuple[int, ...]
    typical_step_s: float
    slowdown: float
    records: tuple[RankRecord, ...]
    rivals: Mapping[int, Sequence[str]]
    nodes: Mapping[str, NodeReport]
    wait_counts: Mapping[int, tuple[int, int]]
    """Number of samples and number of waits, by rank. Empty if the job is not slow."""
    launchers: tuple[LauncherEvidence, ...]
    detector: Detector
    since: float
    evidence_since: float
    """Dumps that are older than this are not part of the case."""
    now: float
    holders: tuple[PlaceHolder, ...] = ()
    """Jobs with which this one is in a deadlock about places. Only all jobs together show them."""

    @property
    def stalled_for_s(self) -> float:
        """Seconds since the stall began."""
        return max(0.0, self.now - self.since)


def collect_case_inputs(
    attempt: Attempt,
    nodes: Mapping[str, NodeReport],
    detector: Detector,
    stall: Stall | None,
    wait_counts: WaitCounts | None,
    now: float,
) -> CaseInputs:
    """Copy the evidence about an attempt that is stalled, has ended, or is slow.

    `stall` is None for a job that has ended or is slow. `wait_counts` is None unless it is slow.
    """
    since = stall.since if stall else now
    rivals: dict[int, list[str]] = {}
    for key, (vitals, _) in attempt.rivals.items():
        rivals.setdefault(vitals.rank, []).append(f"{key.node} pid {key.pid}")
    by_rank = wait_counts.by_rank if wait_counts else {}
    slowdown = attempt.slowness.slowdown if wait_counts else 1.0
    slow_s = attempt.slowness.present_s if slowdown > 1 else 0.0
    return CaseInputs(
        job=attempt.job,
        generation=attempt.number,
        world_size=attempt.world_size,
        missing=attempt.missing_ranks(),
        typical_step_s=slow_s or attempt.pace("").typical_s,
        slowdown=slowdown,
        records=tuple(record.copy() for record in attempt.ranks.values()),
        rivals=rivals,
        nodes=dict(nodes),
        wait_counts={rank: (count.samples, count.waits) for rank, count in by_rank.items()},
        launchers=() if attempt.ranks else attempt.launchers.list_evidence(now),
        detector=detector,
        since=since,
        evidence_since=wait_counts.since if wait_counts else since,
        now=now,
    )


def split_case(inputs: CaseInputs) -> tuple[CaseParts, list[bytes]]:
    """Return a case without its dumps, and the bodies that contain these dumps."""
    bodies: dict[DumpBody, int] = {}
    places = [
        DumpPlace(
            record.vitals.rank,
            record.key.pid,
            record.key.start_time,
            bodies.setdefault(body, len(bodies)),
        )
        for record in inputs.records
        for taken_at, body in record.dumps
        if taken_at >= inputs.evidence_since or is_of_its_end(record, taken_at)
    ]
    parts = CaseParts(case=_case_without_dumps(inputs), dumps=tuple(places))
    return parts, [body.body for body in bodies]


def _case_without_dumps(inputs: CaseInputs) -> Case:
    now, nodes = inputs.now, inputs.nodes
    by_rank = {record.vitals.rank: record for record in inputs.records}
    known = sorted([*by_rank, *inputs.missing])
    live = (record for record in inputs.records if record.is_live)
    reporting = {id(record) for record in inputs.detector.find_reporting(live, nodes, now)}
    ranks = tuple([_rank_evidence(rank, by_rank.get(rank), reporting, inputs) for rank in known])
    last = find_last_reports(inputs.records, nodes)
    if inputs.missing:
        # Missing ranks may run where an agent does not watch them, or cannot see them because it
        # has not the rights.
        for name, node in nodes.items():
            is_theirs = any(each.job == inputs.job for each in _find_unwatched(node, inputs))
            if node.gaps.process or is_theirs:
                last.setdefault(name, node.reporter)
    return Case(
        job=inputs.job,
        generation=inputs.generation,
        world_size=inputs.world_size,
        typical_step_s=inputs.typical_step_s,
        stalled_for_s=inputs.stalled_for_s,
        settle_s=inputs.detector.policy.settle_s,
        moving_cpu_cores=inputs.detector.policy.moving_cpu_cores,
        ranks=ranks,
        nodes=tuple(
            _node_evidence(name, last[name], nodes.get(name), inputs) for name in sorted(last)
        ),
        slowdown=inputs.slowdown,
        launchers=inputs.launchers,
        holders=inputs.holders,
    )


def is_dumped_since(record: RankRecord, since: float) -> bool:
    """Return whether the rank was dumped at or after `since`, the beginning of the stall."""
    return bool(record.dumps) and record.dumps[-1][0] >= since


END_SLACK_S = 5.0
"""Seconds by which the end of a rank may seem to be later than the dump of what it had written: the
report about it has come later."""


def is_of_its_end(record: RankRecord, taken_at: float) -> bool:
    """Return whether a dump has what a rank wrote before it ended: it was taken afterwards."""
    return record.ended_at is not None and taken_at >= record.ended_at - END_SLACK_S


def _rank_evidence(
    rank: int, record: RankRecord | None, reporting: Set[int], inputs: CaseInputs
) -> RankEvidence:
    """Return the evidence about a rank without dumps. `reporting` are ids of records."""
    samples, waits = inputs.wait_counts.get(rank, (0, 0))
    rivals = tuple(inputs.rivals.get(rank, ()))
    if record is None:
        return RankEvidence(
            rank=rank, presence=Presence.MISSING, looks=samples, waits=waits, rivals=rivals
        )
    vitals = record.vitals
    presence = Presence.ENDED
    if record.is_live:
        presence = Presence.LIVE if id(record) in reporting else _lost_presence(record, inputs)
    return RankEvidence(
        rank=rank,
        presence=presence,
        node=record.key.node,
        pid=vitals.pid,
        local_rank=vitals.local_rank,
        role=vitals.role,
        beat=age_beat(vitals.beat, inputs.now - record.seen_at),
        state=vitals.state,
        wchan=vitals.wchan,
        movement=vitals.movement,
        ended=_aged_ending(vitals.ended, record.ended_at, inputs.now),
        looks=samples,
        waits=waits,
        rivals=rivals,
    )


def _lost_presence(record: RankRecord, inputs: CaseInputs) -> Presence:
    is_silent = inputs.detector.is_silent(find_last_report(record, inputs.nodes), inputs.now)
    return Presence.SILENT if is_silent else Presence.UNREPORTED


def _aged_ending(ended: Ending | None, ended_at: float | None, now: float) -> Ending | None:
    if ended is None or ended_at is None:
        return None
    return replace(ended, age_s=max(0.0, now - ended_at))


def _node_evidence(
    name: str, reporter: Reporter | None, node: NodeReport | None, inputs: CaseInputs
) -> NodeEvidence:
    """Return the evidence about a node. `reporter`: the last report about its ranks."""
    if reporter is None or node is None:
        return NodeEvidence(node=name, silent_for_s=0.0)
    return NodeEvidence(
        node=name,
        silent_for_s=inputs.now - reporter.seen_at,
        interval_s=reporter.interval_s,
        limits=node.gaps,
        unwatched=tuple(each.text for each in _find_unwatched(node, inputs)),
        observations=node.observations.aged(inputs.now),
    )


def _find_unwatched(node: NodeReport, inputs: CaseInputs) -> Iterator[UnwatchedRanks]:
    """Yield what the node does not watch now of this job, or of its owner if the job is not known.

    Nothing if the job lacks no rank.
    """
    if not inputs.missing or not node.unwatched:
        return
    if inputs.detector.is_silent(node.reporter, inputs.now):
        return
    owners = {record.vitals.owner for record in inputs.records}
    for each in node.unwatched:
        if each.job == inputs.job or (not each.job and each.owner in owners):
            yield each


def collect_on_demand(
    attempt: Attempt,
    nodes: Mapping[str, NodeReport],
    detector: Detector,
    fresh_since: float,
    now: float,
    known: Stall | None = None,
) -> CaseInputs:
    """Copy the evidence about an attempt.

    The case contains the dumps since the oldest last heartbeat, or since the first dump of a live
    rank at or after `fresh_since` if that is earlier. `known`: its stall, if it is stalled; then
    its dumps since that are in the case too.
    """
    dumps = (at for record in attempt.live() for at, _ in record.dumps if at >= fresh_since)
    dumped_at, beat_at = min(dumps, default=now), attempt.last_beat_of_all()
    since = dumped_at if beat_at is None else min(beat_at, dumped_at)
    since = since if known is None else min(since, known.since)
    stall = Stall(why=Why.OVERDUE, since=since, ranks=frozenset())
    return collect_case_inputs(attempt, nodes, detector, stall, None, now)
