"""The values of a job for its metrics, read on the event loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from watchtower.core.detection.totals import JobTotals
from watchtower.core.fleet.rank_counts import RankCounts, count_ranks, step_quantiles
from watchtower.store.values import Incident
from watchtower.tower.live import LiveJob
from watchtower.tower.tower import Tower
from watchtower.wire.report import JobLabels
from watchtower.wire.verdict import Status

STALLED = (Status.SUSPECT, Status.HUNG)
"""Statuses in which ranks are dumped because of a stall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMeasure:
    """The values of one job for one scrape."""

    name: str
    labels: JobLabels | None
    status: Status
    attempt: int
    world_size: int
    step: int
    typical_step_s: float
    step_quantiles: Mapping[float, float]
    suspects: int
    is_muted: bool
    totals: tuple[int, float, float]
    """Steps, watched seconds, lost seconds."""
    counts: RankCounts | None
    """None for a job that has ended."""
    evidence: Mapping[str, float]
    """Shares of ranks that give evidence, by source. Empty for a job that has ended."""
    incident: Incident | None
    """The open incident."""


def is_open(live: LiveJob) -> bool:
    """Return whether the incident of a job is open."""
    return live.incident is not None and live.incident.closed_at is None


def measure_job(tower: Tower, live: LiveJob, phases: tuple[str, ...]) -> JobMeasure:
    """Return the values of a job. `phases` are those that have series already."""
    job, watch = tower.fleet.jobs[live.name], live.watch
    gen, has_ended = job.generation, watch.status is Status.ENDED
    totals, pace = tower.totals.get(live.name, JobTotals()), gen.pace("")
    counts = None if has_ended else count_ranks(gen.ranks.values(), phases)
    return JobMeasure(
        name=live.name,
        labels=job.labels,
        status=watch.status,
        attempt=gen.number,
        world_size=gen.world_size,
        step=gen.step(),
        typical_step_s=pace.typical_s,
        step_quantiles={} if has_ended else step_quantiles(pace),
        suspects=len(watch.diagnosis.suspects) if watch.diagnosis else 0,
        is_muted=tower.silences.find(live.name) is not None,
        totals=(totals.steps, totals.watched_s, totals.lost_s),
        counts=counts,
        evidence=_measure_evidence(counts, gen.world_size, live) if counts else {},
        incident=live.incident if is_open(live) else None,
    )


def _measure_evidence(counts: RankCounts, world_size: int, live: LiveJob) -> dict[str, float]:
    """Return the shares of ranks that give evidence. A job may report too small a world size."""
    ranks = max(world_size, counts.live, 1)
    shares = {"report": counts.live / ranks, "heartbeat": counts.with_heartbeat / ranks}
    if live.watch.status in STALLED and live.context.dumps_want:
        shares["stacks"] = live.context.dumps_have / live.context.dumps_want
    return shares
