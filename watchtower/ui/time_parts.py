"""Collects the parts about time: the traces of an incident, and the steps of a job."""

from __future__ import annotations

from watchtower.core.incident_filter import IncidentFilter
from watchtower.tower.incident_overviews import IncidentOverview
from watchtower.tower.incident_series import find_series
from watchtower.tower.incident_views import list_incidents
from watchtower.tower.job_overviews import JobOverview
from watchtower.tower.job_steps import view_steps
from watchtower.tower.tower import Tower
from watchtower.ui.steps_part import StepsShown, show_steps
from watchtower.ui.traces_part import TracesShown, show_traces

MARKED = 8
"""Incidents of a job that are marked in its charts, newest first."""


async def collect_traces(tower: Tower, overview: IncidentOverview) -> TracesShown | None:
    """Return the traces of an incident; None if it has none. Raises StoreFailedError."""
    found = await find_series(tower, overview.incident.id)
    return show_traces(found, overview.stalled_at) if found is not None else None


async def collect_steps(tower: Tower, overview: JobOverview) -> StepsShown | None:
    """Return the steps of a live job; None before there are points."""
    name = overview.summary.job
    steps = view_steps(tower, name)
    if steps is None:
        return None
    listed = await list_incidents(tower, IncidentFilter(job=name), MARKED)
    return show_steps(steps, listed.items)
