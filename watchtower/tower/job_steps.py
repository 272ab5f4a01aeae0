"""The step history of a live job, as the API and its page show it."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.jobs.measures import COARSE_S, FINE_S, StepPoint
from watchtower.tower.tower import Tower
from watchtower.writing.times import rfc3339


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


def view_steps(tower: Tower, name: str) -> JobSteps | None:
    """Return the step history of a job; None if it is not live."""
    live = tower.live.get(name)
    if live is None:
        return None
    now, wall = tower.clock.now(), tower.clock.wall()
    return JobSteps(
        job=name,
        generation=live.generation.number,
        recent=_view_span(tower.keepers[name].steps.fine(now), FINE_S, wall),
        day=_view_span(tower.keepers[name].steps.coarse(now), COARSE_S, wall),
    )


def _view_span(points: list[StepPoint], interval_s: float, wall: float) -> StepSpan:
    return StepSpan(
        interval_s=interval_s,
        ends_at=rfc3339(wall - points[-1].age_s) if points else None,
        steps=[point.step for point in points],
        statuses=[point.status.value for point in points],
        phases=[point.phase for point in points],
    )
