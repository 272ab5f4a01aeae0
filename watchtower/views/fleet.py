"""The live jobs as lists: for the API and commands, and for the page of the fleet."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.incidents.incident import Incident
from watchtower.jobs.judgement import Judgement
from watchtower.jobs.keeper import Keeper
from watchtower.views import copy_fields
from watchtower.views.headline import write_headline, write_not_judged
from watchtower.views.moment import Moment, known_step
from watchtower.views.people import subject_of
from watchtower.wire.drills import is_drill
from watchtower.wire.verdict import NotJudged, Progress, Status
from watchtower.writing.times import rfc3339


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHead:
    """What every answer about a live job begins with."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary(JobHead):
    """A job in a list."""

    progress: Progress | None
    """Null if the job has ended or no agent reports it."""
    progress_text: str
    not_judged: NotJudged | None
    incident: str | None
    """The open incident, or the one that the job ended in or has just recovered from."""
    silenced_until: str | None
    """End of the silence of the job or its user; null if they are not silenced."""


def view_head(job: Keeper) -> JobHead:
    """Return what every answer about a live job begins with."""
    attempt, watch = job.attempt, job.judged.watch
    return JobHead(
        job=job.name,
        labels=job.labels.known() if job.labels else {},
        owner=job.owner,
        generation=attempt.number,
        status=watch.status,
        detail=watch.reason,
        world_size=attempt.world_size,
        step=known_step(attempt.step()),
    )


def summarize_jobs(
    moment: Moment, with_drills: bool = False, status: Status | None = None
) -> list[JobSummary]:
    """Return a summary of every live job, by name. With `status`: of every job that has it."""
    return [
        _summarize(moment, job)
        for job in moment.live()
        if (with_drills or not is_drill(job.name)) and status in (None, job.judged.watch.status)
    ]


def _summarize(moment: Moment, job: Keeper) -> JobSummary:
    silence = moment.find_silence(job)
    progress, incident = moment.find_progress(job), job.judged.current_incident
    return JobSummary(
        **copy_fields(view_head(job), JobHead),
        progress=progress.progress,
        progress_text=progress.text,
        not_judged=moment.find_not_judged(job),
        incident=incident.id if incident else None,
        silenced_until=rfc3339(silence.until) if silence else None,
    )


MAX_SENTENCE = 280
"""Characters of the sentence about a job. The page of its incident has the whole one."""

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
    """As in `JobSummary`."""
    attempt: int
    status: Status
    not_judged: NotJudged | None
    """As in `JobSummary`."""
    sentence: str
    """The verdict, or the reason of the status; empty while the job is healthy."""
    since: float | None
    """When the stall, the end or the loss began; None while the job is healthy."""
    world_size: int
    typical_step_s: float
    """In two digits, so that it seldom changes; 0 until it is known."""
    has_steps: bool
    """Whether a rank with heartbeats has made a step."""
    incident: str | None
    """As in `JobSummary`."""
    acked_by: str | None
    """Empty if the person gave no name; None if the incident is not acknowledged."""
    is_silenced: bool


def list_fleet(moment: Moment) -> list[FleetJob]:
    """Return all live jobs, by name."""
    return [find_fleet_job(moment, job) for job in moment.live()]


def find_fleet_job(moment: Moment, job: Keeper) -> FleetJob:
    """Return what is known of one live job."""
    attempt, live = job.attempt, job.judged
    incident, status = live.current_incident, live.watch.status
    not_judged = moment.find_not_judged(job)
    silence = moment.find_silence(job)
    if incident is not None and incident.closed_at is None:
        silence = silence or moment.silence_of(subject_of(incident))
    return FleetJob(
        job=job.name,
        sharer=job.sharer,
        is_drill=is_drill(job.name),
        labels=job.labels.known() if job.labels else {},
        attempt=attempt.number,
        status=status,
        not_judged=not_judged,
        sentence=_find_sentence(live, incident, not_judged)[:MAX_SENTENCE],
        since=_find_since(moment, live, incident),
        world_size=attempt.world_size,
        typical_step_s=_in_two_digits(attempt.pace("").typical_s),
        has_steps=attempt.step() >= 0,
        incident=incident.id if incident else None,
        acked_by=incident.ack.by if incident and incident.ack else None,
        is_silenced=silence is not None,
    )


def _in_two_digits(seconds: float) -> float:
    return float(f"{seconds:.2g}") if seconds < 100 else round(seconds)


def _find_sentence(live: Judgement, incident: Incident | None, not_judged: NotJudged | None) -> str:
    if not_judged is not None:
        return write_not_judged(not_judged)
    if incident is not None:
        is_open = incident.closed_at is None
        return write_headline(incident.verdict) if is_open else incident.verdict.summary
    status, diagnosis = live.watch.status, live.watch.shown
    if status in _IN_DOUBT and diagnosis is not None:
        return write_headline(diagnosis)
    return "" if status is Status.HEALTHY else live.watch.reason


def _find_since(moment: Moment, live: Judgement, incident: Incident | None) -> float | None:
    """Return when the present state began, as far as it is known."""
    if live.watch.status in _OVER:
        if incident is not None and incident.closed_at is not None:
            return incident.closed_at
        return None if live.ended_at is None else moment.wall_of(live.ended_at)
    if live.watch.status is Status.MONITORING_LOST:
        return None if live.lost_at is None else moment.wall_of(live.lost_at)
    return None if live.watch.stall is None else moment.wall_of(live.watch.stall.since)
