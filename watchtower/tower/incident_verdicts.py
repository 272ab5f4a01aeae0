"""The present verdict of an incident or a job: the live one, else the stored one."""

from __future__ import annotations

from watchtower.incidents.incident import Incident
from watchtower.incidents.incident_filter import IncidentFilter
from watchtower.tower.owners import OwnedVerdict, find_owner, owner_of_incident
from watchtower.tower.stored_incidents import read_incident, read_incidents
from watchtower.tower.tower import Tower
from watchtower.tower.views import live_verdict
from watchtower.wire.verdict import Verdict


async def owned_verdict(tower: Tower, incident_id: str) -> OwnedVerdict | None:
    """Return the verdict of one incident and the owner of its job; None if the id is unknown."""
    incident = await read_incident(tower, incident_id, with_case=False)
    if incident is None:
        return None
    return OwnedVerdict(verdict=verdict_of(tower, incident), owner=owner_of_incident(incident))


def verdict_of(tower: Tower, incident: Incident) -> Verdict:
    """Return the live verdict of an open incident, else the stored one."""
    live = live_verdict(tower, incident.job)
    return live if live is not None and live.incident == incident.id else incident.verdict


async def job_verdict(tower: Tower, job: str) -> OwnedVerdict | None:
    """Return the verdict of a live job, else of its latest incident; None without either."""
    live = live_verdict(tower, job)
    if live is not None:
        return OwnedVerdict(verdict=live, owner=find_owner(tower, job))
    for last in await read_incidents(tower, IncidentFilter(job=job), 1):
        return OwnedVerdict(verdict=last.verdict, owner=owner_of_incident(last))
    return None
