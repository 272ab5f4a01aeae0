"""The facts about one live job now, for its page. Nothing in it changes with time alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from watchtower.incidents.incident import JobFacts
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.generation import Generation
from watchtower.jobs.progress import view_progress
from watchtower.tower.clock import SteadyWall
from watchtower.tower.fleet_overviews import FleetJob, find_fleet_job
from watchtower.tower.job_facts import find_job_facts
from watchtower.tower.job_measures import find_evidence
from watchtower.tower.silences import SilenceView, job_subject, view_silence
from watchtower.tower.tower import Tower
from watchtower.tower.unwatched import UnwatchedList, list_unwatched
from watchtower.wire.verdict import Progress, Verdict


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


def find_job_overview(tower: Tower, wall: SteadyWall, name: str) -> JobOverview | None:
    """Return what is known of a live job; None if it is not live."""
    live, job = tower.live.get(name), tower.fleet.jobs.get(name)
    if live is None or job is None:
        return None
    gen, now, watch = job.generation, tower.clock.now(), live.watch
    step, patience = gen.step(), watch.patience
    is_waiting = patience is not None and watch.hung_in_s(now) is not None
    silence = tower.silences.find(job_subject(job, live.slow_node))
    limit_s = tower.detector.step_limit_s(gen)
    progress = view_progress(gen, watch.kind, watch.diagnosis, limit_s=limit_s, now=now)
    alive = [record.vitals.beat for record in gen.live()]
    return JobOverview(
        summary=find_fleet_job(tower, wall, live, job),
        facts=find_job_facts(job, live),
        began_at=wall.of(gen.began_at),
        verdict=live.verdict(None if step < 0 else step, now),
        progress=progress.progress,
        step=None if step < 0 else step,
        slowdown=gen.slowness.slowdown,
        phases=dict(Counter(beat.phase for beat in alive if beat is not None)),
        ended=len(gen.ranks) - len(alive),
        missing=max(0, gen.world_size - len(gen.ranks)),
        unwatched=list_unwatched(tower, name),
        evidence=find_evidence(tower, live, gen),
        waits=_find_waits(live),
        trained_share=job.totals.trained_share,
        nodes=_list_nodes(tower, gen, wall, now),
        silence=view_silence(silence) if silence else None,
        hung_at=wall.of(watch.suspect_since + patience.length_s)
        if patience is not None and is_waiting
        else None,
        hung_because=patience.reason if patience is not None and is_waiting else "",
    )


def _find_waits(live: Attempt) -> dict[int, float]:
    counts = live.watch.wait_counts
    shares = counts.shares() if counts else {}
    least = sorted(shares.items(), key=lambda item: (item[1], item[0]))[:MAX_WAITS]
    return {rank: round(share, 2) for rank, share in least}


def _list_nodes(tower: Tower, gen: Generation, wall: SteadyWall, now: float) -> list[NodeOfJob]:
    ranks: dict[str, list[int]] = {}
    for number, record in gen.ranks.items():
        ranks.setdefault(record.key.node, []).append(number)
    nodes = []
    for name, members in sorted(ranks.items()):
        node = tower.fleet.nodes.get(name)
        records = [gen.ranks[rank] for rank in members]
        steps = [r.vitals.beat.step for r in records if r.vitals.beat and r.vitals.beat.step >= 0]
        is_silent = node is not None and tower.detector.is_silent(node.reporter, now)
        nodes.append(
            NodeOfJob(
                node=name,
                ranks=len(members),
                ended=sum(not record.is_live for record in records),
                first_rank=min(members),
                last_rank=max(members),
                lowest_step=min(steps, default=None),
                highest_step=max(steps, default=None),
                silent_since=wall.of(node.seen_at) if node and is_silent else None,
                limits=list(node.gaps.sentences()) if node else [],
            )
        )
    return nodes
