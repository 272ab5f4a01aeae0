"""All that is known of one incident now, for people: its verdict, its job, its time.

It is the same before and after the end of the job, and after a restart of the tower.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from watchtower.incidents.incident import Incident, IncidentKind, JobFacts
from watchtower.jobs.attempt import Attempt
from watchtower.tower.clock import SteadyWall
from watchtower.tower.job_facts import find_job_facts
from watchtower.tower.silences import SilenceView, subject_of, view_silence
from watchtower.tower.stored_incidents import read_incident
from watchtower.tower.tower import Tower
from watchtower.tower.views import live_verdict
from watchtower.wire.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentOverview:
    """One incident and its job. Times are UNIX seconds."""

    incident: Incident
    """Without its case."""
    verdict: Verdict
    """The current verdict. `stalled_for_s` is the length of the stall at its end, 0 before."""
    facts: JobFacts
    """The facts about its job: now, or at the end of the incident."""
    stalled_at: float | None
    """When the stall began; None for the end of a job."""
    silence: SilenceView | None
    is_over: bool


async def find_incident_overview(
    tower: Tower, wall: SteadyWall, incident_id: str
) -> IncidentOverview | None:
    """Return what is known of one incident; None if the id is unknown. Raises StoreFailedError.

    Nothing in it changes with time alone.
    """
    incident = await read_incident(tower, incident_id, with_case=False)
    if incident is None:
        return None
    is_over = incident.closed_at is not None
    live = _find_live(tower, incident)
    verdict, facts, since = incident.verdict, incident.facts, None
    if live is not None:
        verdict = live_verdict(tower, incident.job) or verdict
        facts = find_job_facts(tower.fleet.jobs[incident.job], live).or_before(facts)
        since = wall.of(live.watch.stall.since) if live.watch.stall else None
    silence = None if is_over else tower.silences.find(subject_of(incident))
    return IncidentOverview(
        incident=replace(incident, evidence=None),
        verdict=replace(
            verdict,
            stalled_for_s=verdict.stalled_for_s if is_over else 0.0,
            progress_text="",
            hung_in_s=None,
        ),
        facts=facts,
        stalled_at=_find_start(incident) if since is None else since,
        silence=view_silence(silence) if silence else None,
        is_over=is_over,
    )


def _find_live(tower: Tower, incident: Incident) -> Attempt | None:
    """Return the live job of an open incident; None if it is closed or its job is not reported."""
    live = tower.live.get(incident.job)
    is_its_own = live is not None and live.incident is not None and live.incident.id == incident.id
    return live if is_its_own and incident.closed_at is None else None


def _find_start(incident: Incident) -> float | None:
    """Return when the stall of a stored incident began."""
    if incident.identity.kind is IncidentKind.ENDED:
        return None
    return incident.updated_at - incident.verdict.stalled_for_s
