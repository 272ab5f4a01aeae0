"""Views of the live state for the API: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from watchtower.evidence.gpus import GPU_PATTERN, find_gpu_use
from watchtower.evidence.observed import Observed
from watchtower.fleet.nodes import NodeRecord
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.generation import Generation
from watchtower.jobs.progress import ProgressView, view_progress
from watchtower.jobs.ranks import ProcessKey
from watchtower.jobs.verdicts import find_not_judged, unjudged_verdict
from watchtower.tower.kill_losses import find_live_loss
from watchtower.tower.silences import SilenceView, job_subject, view_silence
from watchtower.tower.tower import Tower
from watchtower.wire.drills import is_drill
from watchtower.wire.report import Ending, RankVitals
from watchtower.wire.verdict import Cause, NotJudged, Progress, SharedCause, Status, Verdict
from watchtower.writing.ranksets import format_ranks
from watchtower.writing.times import rfc3339

MAX_RANKS_SHOWN = 4096
"""Ranks in the view of one job. For larger jobs, use the verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativeView:
    """A possible cause that was not chosen."""

    cause: Cause
    suspect_ranks: str
    """Rank set, such as "0-6,8"."""
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictView(Verdict):
    """A verdict as the API returns it. A field name has the same type in all answers."""

    alternatives: tuple[AlternativeView, ...] = ()  # type: ignore[assignment]


def view_verdict(verdict: Verdict) -> VerdictView:
    """Return a verdict as the API returns it."""
    values: Mapping[str, Any] = {f.name: getattr(verdict, f.name) for f in fields(verdict)}
    alternatives = tuple(
        AlternativeView(
            cause=other.cause,
            suspect_ranks=format_ranks(other.suspects),
            confidence=other.confidence,
        )
        for other in verdict.alternatives
    )
    return VerdictView(**{**values, "alternatives": alternatives})


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentView:
    """One agent."""

    node: str
    silent_for_s: float
    rank_count: int
    """Number of ranks that it monitors."""
    limits: list[str]
    """Its limitations, as sentences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentList:
    """Connected agents, in the order of node names."""

    items: list[AgentView]
    connected: int
    """Number of connected agents, also of those that `limit` leaves out."""
    silent: int
    """Number of agents that stopped reporting."""
    rank_count: int
    """Number of ranks that connected agents monitor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One rank in its latest report."""

    rank: int
    node: str
    pid: int
    local_rank: int | None
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
class JobSummary:
    """A job in a list."""

    job: str
    labels: dict[str, str]
    """Labels from the environment of its ranks: scheduler, scheduler_id, name, user, partition,
    namespace. Unknown labels are left out."""
    owner: str
    """"uid:1000", "namespace:team-a"; empty if the agents do not know it."""
    generation: int
    status: Status
    detail: str
    world_size: int
    step: int | None
    progress: Progress | None
    """Null if the job has ended or no agent reports it."""
    progress_text: str
    not_judged: NotJudged | None
    incident: str | None
    """The open incident, or the one that the job ended in or has just recovered from."""
    silenced_until: str | None
    """End of the silence of the job or its user; null if they are not silenced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """All data of a live job."""

    job: str
    labels: dict[str, str]
    """As in `JobSummary`."""
    owner: str
    generation: int
    status: Status
    detail: str
    world_size: int
    step: int | None
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


def list_agents(tower: Tower, limit: int) -> AgentList:
    """Return at most `limit` connected agents, and the numbers of all agents."""
    now, nodes = tower.clock.now(), tower.fleet.nodes
    connected = sorted(
        name for name, node in nodes.items() if not tower.detector.is_silent(node.reporter, now)
    )
    return AgentList(
        items=[_view_agent(name, nodes[name], now) for name in connected[:limit]],
        connected=len(connected),
        silent=len(nodes) - len(connected),
        rank_count=sum(len(nodes[name].ranks) for name in connected),
    )


def _view_agent(name: str, node: NodeRecord, now: float) -> AgentView:
    return AgentView(
        node=name,
        silent_for_s=round(now - node.seen_at, 2),
        rank_count=len(node.ranks),
        limits=list(node.gaps.sentences()),
    )


def summarize_jobs(
    tower: Tower, with_drills: bool = False, status: Status | None = None
) -> list[JobSummary]:
    """Return a summary of every live job, by name. With `status`: of every job that has it."""
    names = sorted(name for name in tower.live if with_drills or not is_drill(name))
    jobs = (tower.live[name] for name in names)
    return [_summarize(tower, live) for live in jobs if status in (None, live.watch.status)]


def view_job(tower: Tower, name: str) -> JobView | None:
    """Return all data of one job; None if it is not live."""
    live, job = tower.live.get(name), tower.fleet.jobs.get(name)
    if live is None or job is None:
        return None
    gen, now = job.generation, tower.clock.now()
    silence = tower.silences.find(job_subject(job, live.slow_node))
    records = [gen.ranks[rank] for rank in sorted(gen.ranks)[:MAX_RANKS_SHOWN]]
    verdict = _verdict_of(tower, live, gen, now)
    gpus = _Gpus(tower.fleet.nodes, now)
    return JobView(
        job=name,
        labels=job.labels.known() if job.labels else {},
        owner=job.owner,
        generation=gen.number,
        status=live.watch.status,
        detail=live.watch.reason,
        world_size=gen.world_size,
        step=_step(gen.step()),
        progress=verdict.progress,
        progress_text=verdict.progress_text,
        not_judged=verdict.not_judged,
        typical_step_s=round(gen.pace("").typical_s, 3),
        rank_states=[
            _view_rank(r.key.node, r.vitals, r.seen_at, now, gpus.find(r.key)) for r in records
        ],
        rivals=[_view_rank(k.node, v, at, now) for k, (v, at) in gen.rivals.items()],
        nodes=[_view_node(tower, node, now) for node in sorted({r.key.node for r in records})],
        dumps=DumpsView(have=live.context.dumps_have, want=live.context.dumps_want),
        silence=view_silence(silence) if silence else None,
        verdict=view_verdict(verdict),
    )


def live_verdict(tower: Tower, name: str) -> Verdict | None:
    """Return the verdict of a live job; None if it is not live."""
    live, job = tower.live.get(name), tower.fleet.jobs.get(name)
    if live is None or job is None:
        return None
    return _verdict_of(tower, live, job.generation, tower.clock.now())


def _verdict_of(tower: Tower, live: Attempt, gen: Generation, now: float) -> Verdict:
    view = _view_progress(tower, live, gen, now)
    verdict = live.verdict(_step(gen.step()), now)
    verdict = unjudged_verdict(
        verdict, find_not_judged(gen, live.watch, tower.detector, now, tower.clock.wall())
    )
    return replace(
        verdict,
        progress=view.progress,
        progress_text=view.text,
        shared_with=_count_sharing(tower, live, verdict.shared_cause),
        kill=find_live_loss(tower.fleet.jobs[live.name], live, verdict, tower.clock.wall()),
    )


def _count_sharing(tower: Tower, live: Attempt, cause: SharedCause | None) -> int:
    """Count the open incidents of other jobs with a shared cause."""
    if cause is None:
        return 0
    others = (each.incident for each in tower.live.values() if each is not live)
    return sum(
        each is not None and each.closed_at is None and each.verdict.shared_cause == cause
        for each in others
    )


def _view_progress(tower: Tower, live: Attempt, gen: Generation, now: float) -> ProgressView:
    watch, limit_s = live.watch, tower.detector.step_limit_s(gen)
    return view_progress(gen, watch.kind, watch.diagnosis, limit_s=limit_s, now=now)


def _summarize(tower: Tower, live: Attempt) -> JobSummary:
    job = tower.fleet.jobs[live.name]
    gen, silence = job.generation, tower.silences.find(job_subject(job, live.slow_node))
    now, incident = tower.clock.now(), live.current_incident
    progress = _view_progress(tower, live, gen, now)
    return JobSummary(
        job=live.name,
        labels=job.labels.known() if job.labels else {},
        owner=job.owner,
        generation=gen.number,
        status=live.watch.status,
        detail=live.watch.reason,
        world_size=gen.world_size,
        step=_step(gen.step()),
        progress=progress.progress,
        progress_text=progress.text,
        not_judged=find_not_judged(gen, live.watch, tower.detector, now, tower.clock.wall()),
        incident=incident.id if incident else None,
        silenced_until=rfc3339(silence.until) if silence else None,
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
        gpu=gpu,
        step=_step(beat.step) if beat else None,
        age_s=round(beat.age_s + max(0.0, now - seen_at), 3) if beat else None,
        phase=beat.phase if beat else "",
        state=vitals.state.value,
        ended=vitals.ended,
    )


def _view_node(tower: Tower, name: str, now: float) -> NodeView:
    node = tower.fleet.nodes.get(name)
    if node is None:
        return NodeView(node=name, silent_for_s=0.0, limits=[])
    silent_s = round(now - node.seen_at, 2)
    return NodeView(node=name, silent_for_s=silent_s, limits=list(node.gaps.sentences()))


def _step(step: int) -> int | None:
    return None if step < 0 else step
