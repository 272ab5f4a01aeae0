"""The page of the fleet: what it shows, from what the tower knows. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from watchtower.core.text import count_ranks
from watchtower.fair_order import by_turns
from watchtower.tower.fleet_overviews import FleetJob
from watchtower.tower.health import Health
from watchtower.tower.outage_views import OutageView
from watchtower.ui.words import find_tone, format_step_time, list_labels, rank_severity, stamp
from watchtower.wire.verdict import Status

MAX_JOBS = 200
"""Jobs on the page: about 100 kB. If there are more, owners take turns, so that nobody can push
the hung job of another owner off the page. The others are counted."""

MAX_OUTAGES = 10
"""Outages on the page. A person works on the newest ones."""

MAX_SENTENCE = 280
"""Characters of the sentence about a job. Its own page has the whole one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job in the table."""

    job: str
    status: str
    tone: str
    about: list[str]
    """Labels, "512 ranks", "attempt 2"."""
    sentence: str
    since: str | None
    pace: str
    """"1.2 s a step"; empty if it is not known."""
    incident: str | None
    acked_by: str | None
    """As in `FleetJob`."""
    is_silenced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetShown:
    """The content of the page."""

    hung: int
    """Hung jobs."""
    idle_ranks: int
    """Ranks of hung jobs: each holds a GPU that does nothing."""
    counts: list[tuple[str, int, str]]
    """Status, number of jobs and tone, the worst status first."""
    jobs: list[JobRow]
    drills: list[JobRow]
    hidden: int
    """Jobs that are not shown."""
    outages: list[OutageView]
    health: Health


def show_fleet(
    jobs: Sequence[FleetJob], outages: Sequence[OutageView], health: Health
) -> FleetShown:
    """Return what the page shows."""
    real = [each for each in jobs if not each.is_drill]
    statuses = Counter(each.status for each in real)
    worst = sorted(statuses, key=rank_severity)
    return FleetShown(
        hung=statuses[Status.HUNG],
        idle_ranks=sum(each.world_size for each in real if each.status is Status.HUNG),
        counts=[(each.value, statuses[each], find_tone(each)) for each in worst],
        jobs=[show_row(each) for each in choose_jobs(real)],
        drills=[show_row(each) for each in choose_jobs(set_apart(jobs))],
        hidden=max(0, len(real) - MAX_JOBS),
        outages=list(outages[:MAX_OUTAGES]),
        health=health,
    )


def set_apart(jobs: Iterable[FleetJob]) -> list[FleetJob]:
    """Return the jobs of drills."""
    return [each for each in jobs if each.is_drill]


def choose_jobs(jobs: Iterable[FleetJob]) -> list[FleetJob]:
    """Return the jobs that the page shows, the worst first."""
    turns = by_turns((each.sharer, each) for each in sort_jobs(jobs))
    return sort_jobs(islice(turns, MAX_JOBS))


def sort_jobs(jobs: Iterable[FleetJob]) -> list[FleetJob]:
    """Return the jobs, the worst first: by status, then unacknowledged ones, then the largest."""

    def key(job: FleetJob) -> tuple[int, bool, bool, int, str]:
        is_known = job.acked_by is not None
        return rank_severity(job.status), is_known, job.is_silenced, -job.world_size, job.job

    return sorted(jobs, key=key)


def show_row(job: FleetJob) -> JobRow:
    """Return one row of the table."""
    about = [*list_labels(job.labels), count_ranks(job.world_size)]
    if job.attempt > 1:
        about.append(f"attempt {job.attempt}")
    return JobRow(
        job=job.job,
        status=job.status.value,
        tone=find_tone(job.status) if job.acked_by is None else "warn",
        about=about,
        sentence=job.sentence[:MAX_SENTENCE],
        since=stamp(job.since),
        pace=format_step_time(job.typical_step_s) if job.has_steps else "",
        incident=job.incident,
        acked_by=job.acked_by,
        is_silenced=job.is_silenced,
    )
