"""The values of a job for its metrics, read on the event loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from watchtower.incidents.incident import Incident, IncidentKind
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.judgement import Judgement
from watchtower.jobs.keeper import Keeper
from watchtower.jobs.measures import RankCounts, count_ranks, step_quantiles
from watchtower.jobs.progress import is_judged
from watchtower.views.moment import Moment
from watchtower.views.people import subject_of
from watchtower.wire.report import JobLabels
from watchtower.wire.verdict import Status

PLACES = ("working", "waiting", "device", "elsewhere", "ended", "unseen")
"""Where a rank is, in the metrics of a job."""

STALLED = (Status.SUSPECT, Status.HUNG)
"""Statuses in which ranks are dumped because of a stall."""


MAX_RANKS_NAMED = 16
"""Ranks of a slow job with a series of their own. The ranks change only with the verdict."""


class WaitShares(NamedTuple):
    """In which share of their samples ranks waited for other ranks, 0 to 1."""

    quantiles: Mapping[float, float]
    """Over all sampled ranks. Empty unless the job is slow."""
    by_rank: Mapping[int, float]
    """Share of samples in which the ranks that slow down the job waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMeasure:
    """The values of one job for one scrape."""

    name: str
    labels: JobLabels | None
    status: Status
    is_judged: bool
    """False while the job is healthy by default only."""
    attempt: int
    world_size: int
    step: int
    typical_step_s: float
    step_quantiles: Mapping[float, float]
    suspects: int
    is_silenced: bool
    is_incident_silenced: bool
    is_shadow: bool
    """Whether the alert about slow steps is in shadow mode."""
    totals: tuple[int, float, float]
    """Steps, watched seconds, lost seconds."""
    counts: RankCounts | None
    """None for a job that has ended."""
    incident: Incident | None
    """The open incident, or the end of the job if `has_died`."""
    has_died: bool
    """The incident is the end of the job, and it ended less than `DIED_SHOWN_S` seconds ago."""
    places: Mapping[str, int]
    """Ranks by place. Empty for a job that has ended."""
    evidence: Mapping[str, float]
    """Share of the ranks that each source of evidence covers, 0 to 1. Empty for a job that has
    ended."""
    waits: WaitShares
    """How much ranks wait for other ranks."""


DIED_SHOWN_S = 600.0
"""Seconds for which the end of a job is exported: two times what the alert rules remember."""


def is_open(live: Judgement) -> bool:
    """Return whether the incident of a job is open."""
    return live.incident is not None and live.incident.closed_at is None


def has_died(incident: Incident | None, wall: float) -> bool:
    """Return whether an incident is the end of a job, just now."""
    if incident is None or incident.closed_at is None:
        return False
    is_end = incident.identity.kind is IncidentKind.ENDED
    return is_end and abs(wall - incident.closed_at) < DIED_SHOWN_S


def find_evidence(moment: Moment, job: Keeper) -> dict[str, float]:
    """Return the share of the ranks that each source of evidence covers."""
    attempt, live = job.attempt, job.judged
    alive = list(attempt.live())
    reporting = moment.detector.find_reporting(alive, moment.nodes, moment.now)
    missing = len(alive) - len(reporting) + max(0, attempt.world_size - len(attempt.ranks))
    covered = {"process": (len(reporting), len(reporting) + missing)}
    beats = sum(record.vitals.beat is not None for record in reporting)
    covered["heartbeat"] = (beats, len(reporting))
    if live.watch.stall is not None:
        covered["stacks"] = (live.context.dumps_have, live.context.dumps_want)
    shares = {source: part / whole for source, (part, whole) in covered.items() if whole}
    diagnosis = live.watch.diagnosis
    if live.watch.stall is not None and diagnosis is not None:
        shares |= diagnosis.coverage
    return shares


def count_places(live: Judgement, attempt: Attempt) -> dict[str, int]:
    """Return the number of ranks by place: of the last diagnosis in a stall, else of all ranks."""
    diagnosis = live.watch.diagnosis
    if live.watch.stall is not None and diagnosis is not None and diagnosis.places:
        return {place: diagnosis.places.get(place, 0) for place in PLACES}
    working = sum(1 for _ in attempt.live())
    unseen = max(0, attempt.world_size - len(attempt.ranks))
    known = {"working": working, "ended": len(attempt.ranks) - working, "unseen": unseen}
    return dict.fromkeys(PLACES, 0) | known


def measure_waits(live: Judgement) -> WaitShares:
    """Return how much ranks wait, while a job is slow and its ranks are sampled."""
    counts, diagnosis = live.watch.wait_counts, live.watch.diagnosis
    shares = counts.shares() if counts else {}
    if not shares:
        return WaitShares({}, {})
    slow = diagnosis.suspects if diagnosis else ()
    named = [suspect.rank for suspect in slow if suspect.rank in shares][:MAX_RANKS_NAMED]
    return WaitShares({0.5: median(shares.values())}, {rank: shares[rank] for rank in named})


def measure_job(moment: Moment, job: Keeper, phases: tuple[str, ...]) -> JobMeasure:
    """Return the values of a live job. `phases` are those that have series already."""
    attempt, live, watch = job.attempt, job.judged, job.judged.watch
    has_ended = watch.status is Status.ENDED
    died = has_died(live.incident, moment.wall)
    incident = live.incident if is_open(live) or died else None
    totals, pace = job.totals, attempt.pace("")
    return JobMeasure(
        name=job.name,
        labels=job.labels,
        status=watch.status,
        is_judged=is_judged(attempt, watch, moment.detector.policy),
        attempt=attempt.number,
        world_size=attempt.world_size,
        step=attempt.step(),
        typical_step_s=pace.typical_s,
        step_quantiles={} if has_ended else step_quantiles(pace),
        suspects=len(watch.shown.suspects) if watch.shown else 0,
        is_silenced=moment.find_silence(job) is not None,
        is_incident_silenced=bool(incident and moment.silence_of(subject_of(incident))),
        is_shadow=live.shadow_mode.covers(watch.diagnosis.cause if watch.diagnosis else None),
        totals=(totals.steps, totals.watched_s, totals.lost_s),
        counts=None if has_ended else count_ranks(attempt.ranks.values(), phases),
        incident=incident,
        has_died=died,
        places={} if has_ended else count_places(live, attempt),
        evidence={} if has_ended else find_evidence(moment, job),
        waits=measure_waits(live),
    )
