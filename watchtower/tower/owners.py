"""The owner of a job, for people: its user and its number in the scheduler, else its owner."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.incidents.incident import Incident
from watchtower.jobs.keeper import Keeper
from watchtower.tower.tower import Tower
from watchtower.wire.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedVerdict:
    """A verdict, and the owner of its job."""

    verdict: Verdict
    owner: str
    """"alice (slurm 48213)", "uid:1000"; empty if it is not known."""


def find_owner(tower: Tower, name: str) -> str:
    """Return the owner of a live job; empty if the job is not live or its owner is not known."""
    job = tower.fleet.jobs.get(name)
    return owner_of_job(job) if job else ""


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
