"""Facts about a job at the time of an incident event, for the text of an alert."""

from __future__ import annotations

from watchtower.core.fleet.job import Job
from watchtower.store.values import JobFacts
from watchtower.tower.live import LiveJob


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
