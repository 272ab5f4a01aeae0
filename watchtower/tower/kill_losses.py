"""The losses of a kill of a job: its facts from the incident, and the answer for a live job."""

from __future__ import annotations

from dataclasses import replace

from watchtower.incidents.incident import Incident, JobFacts
from watchtower.incidents.kill_text import KillFacts, find_kill_loss
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.keeper import Keeper
from watchtower.tower.job_facts import find_job_facts
from watchtower.wire.verdict import KillLoss, Verdict


def find_live_loss(job: Keeper, live: Attempt, verdict: Verdict, wall: float) -> KillLoss | None:
    """Return what a kill loses; None if no incident of the job is open. `wall`: UNIX seconds."""
    incident = live.current_incident
    if incident is None or incident.closed_at is not None:
        return None
    facts = find_job_facts(job, live).or_before(incident.facts)
    return find_kill_loss(gather_kill_facts(replace(incident, verdict=verdict), facts), wall)


def gather_kill_facts(incident: Incident, job: JobFacts) -> KillFacts:
    """Return the facts about an incident, and what is known of its job."""
    verdict = incident.verdict
    return KillFacts(
        status=incident.identity.kind.value,
        ranks=job.ranks,
        dumps_in=job.dumps_in,
        dumps_wanted=job.dumps_wanted,
        step=verdict.step,
        checkpoint_step=job.checkpoint_step,
        step_s=job.step_s,
        rank=verdict.suspects[0].rank if verdict.suspects else None,
        suspects=len(verdict.suspects),
        cause=verdict.cause.value if verdict.cause else "",
        domain=(verdict.domain or incident.identity.domain).value,
        timeout_s=verdict.collective_timeout_s,
        timeout_at=incident.facts.timeout_at,
    )
