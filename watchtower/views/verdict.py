"""The verdict of a live job, as everything shows it: with its progress, its owner and what a
kill loses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from watchtower.incidents.incident import Incident
from watchtower.incidents.kill_text import find_kill_loss, gather_kill_facts
from watchtower.jobs.keeper import Keeper
from watchtower.jobs.verdicts import unjudged_verdict
from watchtower.views import copy_fields
from watchtower.views.moment import Moment, known_step
from watchtower.wire.verdict import Cause, KillLoss, SharedCause, Verdict
from watchtower.writing.ranksets import format_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativeView:
    """A possible cause that was not chosen."""

    cause: Cause
    suspect_ranks: str
    """Rank set, such as "0-6,8"."""
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictView(Verdict):
    """A verdict, in the format asked for. A field name has the same type in all answers."""

    alternatives: tuple[AlternativeView, ...] = ()  # type: ignore[assignment]


def view_verdict(verdict: Verdict) -> VerdictView:
    """Return a verdict as the API returns it."""
    alternatives = tuple(
        AlternativeView(
            cause=other.cause,
            suspect_ranks=format_ranks(other.suspects),
            confidence=other.confidence,
        )
        for other in verdict.alternatives
    )
    return VerdictView(**(copy_fields(verdict, Verdict) | {"alternatives": alternatives}))


def live_verdict(moment: Moment, name: str) -> Verdict | None:
    """Return the verdict of a live job; None if it is not live."""
    keeper = moment.find(name)
    return verdict_now(moment, keeper) if keeper is not None else None


def verdict_now(moment: Moment, keeper: Keeper) -> Verdict:
    """Return the verdict of a live job with its progress, and with what a kill loses."""
    progress = moment.find_progress(keeper)
    verdict = keeper.judged.verdict(known_step(keeper.attempt.step()), moment.now)
    verdict = unjudged_verdict(verdict, moment.find_not_judged(keeper))
    return replace(
        verdict,
        progress=progress.progress,
        progress_text=progress.text,
        shared_with=_count_sharing(moment, keeper, verdict.shared_cause),
        kill=_find_loss(keeper, verdict, moment.wall),
    )


def _count_sharing(moment: Moment, keeper: Keeper, cause: SharedCause | None) -> int:
    """Count the open incidents of other jobs with a shared cause."""
    if cause is None:
        return 0
    others = (each.judged.incident for each in moment.live() if each is not keeper)
    return sum(
        each is not None and each.closed_at is None and each.verdict.shared_cause == cause
        for each in others
    )


def verdict_of(moment: Moment, incident: Incident) -> Verdict:
    """Return the live verdict of an open incident, else the stored one."""
    live = live_verdict(moment, incident.job)
    return live if live is not None and live.incident == incident.id else incident.verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedVerdict:
    """A verdict, and the owner of its job."""

    verdict: Verdict
    owner: str
    """"alice (slurm 48213)", "uid:1000"; empty if it is not known."""


def find_owner(moment: Moment, name: str) -> str:
    """Return the owner of a live job; empty if the job is not live or its owner is not known."""
    keeper = moment.keepers.get(name)
    return owner_of_job(keeper) if keeper else ""


def owner_of_job(job: Keeper) -> str:
    """Return the owner of a job."""
    labels = job.labels
    if labels is None:
        return job.owner
    return _write_owner(labels.user or job.owner, labels.scheduler, labels.scheduler_id)


def owner_of_incident(incident: Incident) -> str:
    """Return the owner of the job of an incident."""
    sharer = incident.sharer if incident.sharer != incident.job else ""
    return _write_owner(
        incident.identity.user or sharer, incident.facts.scheduler, incident.facts.scheduler_id
    )


def _write_owner(user: str, scheduler: str, number: str) -> str:
    job = f"{scheduler} {number}".strip() if number else ""
    return f"{user} ({job})" if user and job else user or job


def _find_loss(keeper: Keeper, verdict: Verdict, wall: float) -> KillLoss | None:
    """Return what a kill loses; None if no incident of the job is open. `wall`: UNIX seconds."""
    incident = keeper.judged.current_incident
    if incident is None or incident.closed_at is not None:
        return None
    facts = keeper.facts().or_before(incident.facts)
    current = replace(incident, verdict=verdict, facts=facts)
    return find_kill_loss(gather_kill_facts(current), wall)
