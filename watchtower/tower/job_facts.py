"""Facts about a job at the time of an incident event, for the text of an alert."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.core.fleet.job import Job
from watchtower.tower.live import LiveJob


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What the tower knows of a job besides its verdict. None or empty: not known."""

    ranks: int | None = None
    """World size."""
    scheduler: str = ""
    scheduler_id: str = ""
    user: str = ""
    dumps_in: int | None = None
    """Reporting ranks of which a dump of this stall has arrived."""
    dumps_wanted: int | None = None
    """Ranks that report."""
    checkpoint_step: int | None = None
    """Step at which the last checkpoint was complete."""
    step_s: float | None = None
    """Seconds that a step usually takes."""
    founder: str = ""
    """Node that reported it first."""


def find_job_facts(job: Job, live: LiveJob) -> JobFacts:
    """Return what is known of a job now."""
    labels = job.labels
    return JobFacts(
        ranks=job.generation.world_size,
        scheduler=labels.scheduler if labels else "",
        scheduler_id=labels.scheduler_id if labels else "",
        user=labels.user if labels else "",
        dumps_in=live.context.dumps_have,
        dumps_wanted=live.context.dumps_want,
        checkpoint_step=job.generation.checkpoint_step,
        step_s=job.generation.pace("").typical_s or None,
        founder=job.founder,
    )
