"""Facts about a job at the time of an incident event, for the text of an alert and the pages."""

from __future__ import annotations

from watchtower.incidents.incident import JobFacts
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.keeper import Keeper


def find_job_facts(job: Keeper, live: Attempt) -> JobFacts:
    """Return what is known of a job now."""
    labels, gen = job.labels, job.generation
    return JobFacts(
        ranks=gen.world_size,
        nodes=len({record.key.node for record in gen.ranks.values()}),
        scheduler=labels.scheduler if labels else "",
        scheduler_id=labels.scheduler_id if labels else "",
        name=labels.name if labels else "",
        user=labels.user if labels else "",
        partition=labels.partition if labels else "",
        namespace=labels.namespace if labels else "",
        dumps_in=live.context.dumps_have,
        dumps_wanted=live.context.dumps_want,
        checkpoint_step=gen.checkpoint_step,
        step_s=gen.pace("").typical_s or None,
        founder=job.founder,
    )
