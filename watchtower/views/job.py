"""One live job: for the API, its page and its step history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from watchtower.evidence.gpus import GPU_PATTERN, find_gpu_use
from watchtower.evidence.observed import Observed
from watchtower.fleet.nodes import NodeRecord
from watchtower.incidents.incident import JobFacts
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.judgement import Judgement
from watchtower.jobs.measures import COARSE_S, FINE_S, StepPoint
from watchtower.jobs.ranks import ProcessKey
from watchtower.views import copy_fields
from watchtower.views.fleet import FleetJob, JobHead, find_fleet_job, view_head
from watchtower.views.measures import find_evidence
from watchtower.views.moment import Moment, known_step
from watchtower.views.node import UnwatchedList, list_unwatched
from watchtower.views.people import SilenceView, view_silence
from watchtower.views.verdict import VerdictView, verdict_now, view_verdict
from watchtower.wire.report import Ending, RankVitals
from watchtower.wire.verdict import NotJudged, Progress, Verdict
from watchtower.writing.times import rfc3339

MAX_RANKS_SHOWN = 4096
"""Ranks in the view of one job. For larger jobs, use the verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One rank in its latest report."""

    rank: int
    node: str
    pid: int
    local_rank: int | None
    role: str
    """What the process is in a job whose members are not all alike: "Worker_TP1". Empty for ranks
    that their launcher has numbered."""
    gpu: int | None
    """NVML index; null until the GPU of the process is measured."""
    step: int | None
    age_s: float | None
    phase: str
    state: str
    ended: Ending | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node of a job."""

    node: str
    silent_for_s: float
    limits: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpsView:
    """Number of ranks that were dumped in the current stall, and number of ranks to dump."""

    have: int
    want: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView(JobHead):
    """All data of a live job."""

    typical_step_s: float
    progress: Progress | None
    progress_text: str
    not_judged: NotJudged | None
    rank_states: list[RankView]
    rivals: list[RankView]
    """Second processes that claim a rank of this job."""
    nodes: list[NodeView]
    dumps: DumpsView
    silence: SilenceView | None
    """The silence of the job or its user."""
    verdict: VerdictView


def view_job(moment: Moment, name: str) -> JobView | None:
    """Return all data of one job; None if it is not live."""
    job = moment.find(name)
    if job is None:
        return None
    attempt, live, now = job.attempt, job.judged, moment.now
    silence = moment.find_silence(job)
    records = [attempt.ranks[rank] for rank in sorted(attempt.ranks)[:MAX_RANKS_SHOWN]]
    verdict = verdict_now(moment, job)
    gpus = _Gpus(moment.nodes, now)
    return JobView(
        **copy_fields(view_head(job), JobHead),
        progress=verdict.progress,
        progress_text=verdict.progress_text,
        not_judged=verdict.not_judged,
        typical_step_s=round(attempt.pace("").typical_s, 3),
        rank_states=[
            _view_rank(r.key.node, r.vitals, r.seen_at, now, gpus.find(r.key)) for r in records
        ],
        rivals=[_view_rank(k.node, v, at, now) for k, (v, at) in attempt.rivals.items()],
        nodes=[_view_node(moment, node, now) for node in sorted({r.key.node for r in records})],
        dumps=DumpsView(have=live.context.dumps_have, want=live.context.dumps_want),
        silence=view_silence(silence) if silence else None,
        verdict=view_verdict(verdict),
    )


class _Gpus:
    """The numbers of GPUs by the processes that use them."""

    def __init__(self, nodes: Mapping[str, NodeRecord], now: float) -> None:
        self._nodes, self._now = nodes, now
        self._observed: dict[str, Observed] = {}

    def find(self, key: ProcessKey) -> int | None:
        """Return the number of the GPU that a process uses; None if it is not known."""
        if key.node not in self._observed:
            node = self._nodes.get(key.node)
            items = node.observations.aged(self._now) if node is not None else ()
            self._observed[key.node] = Observed(items)
        use = find_gpu_use(self._observed[key.node].about(key.pid, (GPU_PATTERN,)))
        return use.index if use is not None else None


def _view_rank(
    node: str, vitals: RankVitals, seen_at: float, now: float, gpu: int | None = None
) -> RankView:
    beat = vitals.beat
    return RankView(
        rank=vitals.rank,
        node=node,
        pid=vitals.pid,
        local_rank=vitals.local_rank,
        role=vitals.role,
        gpu=gpu,
        step=known_step(beat.step) if beat else None,
        age_s=round(beat.age_s + max(0.0, now - seen_at), 3) if beat else None,
        phase=beat.phase if beat else "",
        state=vitals.state.value,
        ended=vitals.ended,
    )


def _view_node(moment: Moment, name: str, now: float) -> NodeView:
    node = moment.nodes.get(name)
    if node is None:
        return NodeView(node=name, silent_for_s=0.0, limits=[])
    silent_s = round(now - node.seen_at, 2)
    return NodeView(node=name, silent_for_s=silent_s, limits=list(node.gaps.sentences()))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOfJob:
    """The ranks of one job on one node."""

    node: str
    ranks: int
    ended: int
    first_rank: int
    last_rank: int
    lowest_step: int | None
    highest_step: int | None
    silent_since: float | None
    """UNIX seconds of the last report of a silent agent; None while it reports."""
    limits: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOverview:
    """One live job. Times are UNIX seconds."""

    summary: FleetJob
    facts: JobFacts
    began_at: float
    """When its present attempt was first seen."""
    verdict: Verdict
    """Without ages."""
    progress: Progress | None
    step: int | None
    slowdown: float
    """Length of a step, as a multiple of its usual length."""
    phases: dict[str, int]
    """Number of live ranks by phase: "" is training."""
    ended: int
    missing: int
    """Ranks that were never reported."""
    unwatched: UnwatchedList
    """Processes of this name that are not watched."""
    evidence: dict[str, float]
    """Share of the ranks that each source of evidence covers, 0 to 1."""
    waits: dict[int, float]
    """While the job is slow: the share of its samples in which a rank waited, of the ranks that
    waited least."""
    trained_share: float | None
    """Share of the watched time in which the job was not hung, over all attempts."""
    nodes: list[NodeOfJob]
    silence: SilenceView | None
    hung_at: float | None
    """While it is suspect: when it counts as hung if nothing changes."""
    hung_because: str


MAX_WAITS = 10
"""Ranks of a slow job that are listed: those that waited least."""


def find_job_overview(moment: Moment, name: str) -> JobOverview | None:
    """Return what is known of a live job; None if it is not live."""
    job = moment.find(name)
    if job is None:
        return None
    attempt, live, now = job.attempt, job.judged, moment.now
    watch = live.watch
    step, patience = known_step(attempt.step()), watch.patience
    is_waiting = patience is not None and watch.hung_in_s(now) is not None
    silence = moment.find_silence(job)
    alive = [record.vitals.beat for record in attempt.live()]
    return JobOverview(
        summary=find_fleet_job(moment, job),
        facts=job.facts(),
        began_at=moment.wall_of(attempt.began_at),
        verdict=live.verdict(step, now),
        progress=moment.find_progress(job).progress,
        step=step,
        slowdown=attempt.slowness.slowdown,
        phases=dict(Counter(beat.phase for beat in alive if beat is not None)),
        ended=len(attempt.ranks) - len(alive),
        missing=max(0, attempt.world_size - len(attempt.ranks)),
        unwatched=list_unwatched(moment, name),
        evidence=find_evidence(moment, job),
        waits=_find_waits(live),
        trained_share=job.totals.trained_share,
        nodes=_list_nodes(moment, attempt),
        silence=view_silence(silence) if silence else None,
        hung_at=moment.wall_of(watch.suspect_since + patience.hung_s)
        if patience is not None and is_waiting
        else None,
        hung_because=patience.reason if patience is not None and is_waiting else "",
    )


def _find_waits(live: Judgement) -> dict[int, float]:
    counts = live.watch.wait_counts
    shares = counts.shares() if counts else {}
    least = sorted(shares.items(), key=lambda item: (item[1], item[0]))[:MAX_WAITS]
    return {rank: round(share, 2) for rank, share in least}


def _list_nodes(moment: Moment, attempt: Attempt) -> list[NodeOfJob]:
    ranks: dict[str, list[int]] = {}
    for number, record in attempt.ranks.items():
        ranks.setdefault(record.key.node, []).append(number)
    nodes = []
    for name, members in sorted(ranks.items()):
        node = moment.nodes.get(name)
        records = [attempt.ranks[rank] for rank in members]
        steps = [r.vitals.beat.step for r in records if r.vitals.beat and r.vitals.beat.step >= 0]
        is_silent = node is not None and moment.detector.is_silent(node.reporter, moment.now)
        nodes.append(
            NodeOfJob(
                node=name,
                ranks=len(members),
                ended=sum(not record.is_live for record in records),
                first_rank=min(members),
                last_rank=max(members),
                lowest_step=min(steps, default=None),
                highest_step=max(steps, default=None),
                silent_since=moment.wall_of(node.seen_at) if node and is_silent else None,
                limits=list(node.gaps.sentences()) if node else [],
            )
        )
    return nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpan:
    """Points with equal times between them, oldest first."""

    interval_s: float
    """Seconds between two points."""
    ends_at: str | None
    """RFC 3339: time of the last point; null without points."""
    steps: list[int | None]
    """Lowest step of the ranks; null before the first one."""
    statuses: list[str]
    """Status of the job at each point."""
    phases: list[str]
    """Phase of most of the ranks; empty in plain training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSteps:
    """The steps of a job since the tower first saw this attempt."""

    job: str
    generation: int
    recent: StepSpan
    """The last 15 minutes."""
    day: StepSpan
    """The last 24 hours."""


def view_steps(moment: Moment, name: str) -> JobSteps | None:
    """Return the step history of a job; None if it is not live."""
    job = moment.find(name)
    if job is None:
        return None
    now, wall = moment.now, moment.wall
    return JobSteps(
        job=name,
        generation=job.judged.attempt.number,
        recent=_view_span(job.steps.fine(now), FINE_S, wall),
        day=_view_span(job.steps.coarse(now), COARSE_S, wall),
    )


def _view_span(points: list[StepPoint], interval_s: float, wall: float) -> StepSpan:
    return StepSpan(
        interval_s=interval_s,
        ends_at=rfc3339(wall - points[-1].age_s) if points else None,
        steps=[point.step for point in points],
        statuses=[point.status.value for point in points],
        phases=[point.phase for point in points],
    )
