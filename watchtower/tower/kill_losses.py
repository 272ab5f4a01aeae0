"""The losses of a kill of a live job, for its verdict."""

from __future__ import annotations

from dataclasses import replace

from watchtower.core.fleet.job import Job
from watchtower.core.kill_text import KillFacts, find_kill_loss
from watchtower.store.values import IncidentKind
from watchtower.tower.job_facts import find_job_facts
from watchtower.tower.live import LiveJob
from watchtower.wire.verdict import KillLoss, Verdict


def find_live_loss(job: Job, live: LiveJob, verdict: Verdict, wall: float) -> KillLoss | None:
    """Return what a kill loses; None if no incident of the job is open. `wall`: UNIX seconds."""
    incident = live.current_incident
    if incident is None or incident.closed_at is not None:
        return None
    facts = find_job_facts(job, live).or_before(incident.facts)
    timeout_s = verdict.collective_timeout_s
    return find_kill_loss(
        replace(
            KillFacts.of(verdict),
            never_started=incident.identity.kind is IncidentKind.NEVER_STARTED,
            ranks=facts.ranks,
            dumps_in=facts.dumps_in,
            dumps_wanted=facts.dumps_wanted,
            checkpoint_step=facts.checkpoint_step,
            step_s=facts.step_s,
            domain=(verdict.domain or incident.identity.domain).value,
            timeout_s=timeout_s,
            timeout_at=None if timeout_s is None else wall - verdict.stalled_for_s + timeout_s,
        )
    )
