"""The facts about all live jobs now, for the page of the fleet. Nothing in it changes with time
alone: a page that shows it is sent again only if something happened."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.incidents.incident import Incident
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.keeper import Keeper
from watchtower.jobs.verdicts import find_not_judged
from watchtower.tower.clock import SteadyWall
from watchtower.tower.silences import job_subject, subject_of
from watchtower.tower.tower import Tower
from watchtower.views.headline import write_headline, write_not_judged
from watchtower.wire.drills import is_drill
from watchtower.wire.verdict import Cause, Domain, NotJudged, Status

_OVER = (Status.ENDED, Status.RECOVERED)
_IN_DOUBT = (Status.SUSPECT, Status.SLOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetJob:
    """One live job. Times are UNIX seconds."""

    job: str
    sharer: str
    """Key of the fair shares, as in `Job.sharer`."""
    is_drill: bool
    labels: dict[str, str]
    """As in `views.JobSummary`."""
    attempt: int
    status: Status
    not_judged: NotJudged | None
    """As in `views.JobSummary`."""
    sentence: str
    """The verdict, or the reason of the status; empty while the job is healthy."""
    since: float | None
    """When the stall, the end or the loss began; None while the job is healthy."""
    world_size: int
    typical_step_s: float
    """0 until it is known."""
    has_steps: bool
    """Whether a rank with heartbeats has made a step."""
    incident: str | None
    """As in `views.JobSummary`."""
    cause: Cause | None
    domain: Domain | None
    acked_by: str | None
    """Empty if the person gave no name; None if the incident is not acknowledged."""
    is_silenced: bool
    step: int | None
    """Lowest step of all ranks with heartbeats, of a job that makes no steps now."""


def list_fleet(tower: Tower, wall: SteadyWall) -> list[FleetJob]:
    """Return all live jobs, by name."""
    names = sorted(tower.live.keys() & tower.fleet.jobs.keys())
    return [find_fleet_job(tower, wall, tower.live[name], tower.fleet.jobs[name]) for name in names]


def find_fleet_job(tower: Tower, wall: SteadyWall, live: Attempt, job: Keeper) -> FleetJob:
    """Return what is known of one live job."""
    gen, incident, status = job.generation, live.current_incident, live.watch.status
    diagnosis = live.watch.diagnosis if status in _IN_DOUBT else None
    cause, domain = (diagnosis.cause, diagnosis.domain) if diagnosis else (None, None)
    if incident is not None:
        cause, domain = incident.verdict.cause, incident.verdict.domain
    step = gen.step()
    not_judged = find_not_judged(
        gen, live.watch, tower.detector, tower.clock.now(), tower.clock.wall()
    )
    silence = tower.silences.find(job_subject(job, live.slow_node))
    if incident is not None and incident.closed_at is None:
        silence = silence or tower.silences.find(subject_of(incident))
    return FleetJob(
        job=live.name,
        sharer=job.sharer,
        is_drill=is_drill(live.name),
        labels=job.labels.known() if job.labels else {},
        attempt=gen.number,
        status=status,
        not_judged=not_judged,
        sentence=_find_sentence(live, incident, not_judged),
        since=_find_since(live, incident, wall),
        world_size=gen.world_size,
        typical_step_s=gen.pace("").typical_s,
        has_steps=step >= 0,
        incident=incident.id if incident else None,
        cause=cause,
        domain=domain,
        acked_by=incident.ack.by if incident and incident.ack else None,
        is_silenced=silence is not None,
        step=step if live.watch.stall is not None and step >= 0 else None,
    )


def _find_sentence(live: Attempt, incident: Incident | None, not_judged: NotJudged | None) -> str:
    if not_judged is not None:
        return write_not_judged(not_judged)
    if incident is not None:
        is_open = incident.closed_at is None
        return write_headline(incident.verdict) if is_open else incident.verdict.summary
    status, diagnosis = live.watch.status, live.watch.diagnosis
    if status in _IN_DOUBT and diagnosis is not None:
        return write_headline(diagnosis)
    return "" if status is Status.HEALTHY else live.watch.reason


def _find_since(live: Attempt, incident: Incident | None, wall: SteadyWall) -> float | None:
    """Return when the present state began, as far as it is known."""
    if live.watch.status in _OVER:
        if incident is not None and incident.closed_at is not None:
            return incident.closed_at
        return None if live.ended_at is None else wall.of(live.ended_at)
    if live.watch.status is Status.MONITORING_LOST:
        return None if live.lost_at is None else wall.of(live.lost_at)
    return None if live.watch.stall is None else wall.of(live.watch.stall.since)
