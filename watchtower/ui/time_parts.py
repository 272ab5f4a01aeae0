"""Collects the parts about time: the traces of an incident, and the steps of a job."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from watchtower.incidents.incident_filter import IncidentFilter
from watchtower.jobs.incident_reads import choose_suspects
from watchtower.store.values import SeriesRow
from watchtower.tower.incident_overviews import IncidentOverview
from watchtower.tower.incident_series import read_rows, view_series
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
    ident, stalled_at = overview.incident.id, overview.stalled_at
    rows = await read_rows(tower, ident)
    suspects = choose_suspects(overview.incident.verdict)
    version = _digest(rows), suspects, stalled_at
    drawn: TracesShown | None = tower.drawings.find(ident, version)
    if drawn is None:
        drawn = show_traces(view_series(ident, rows, suspects), stalled_at)
        tower.drawings.put(ident, version, drawn)
    return drawn


def _digest(rows: Sequence[SeriesRow]) -> bytes:
    content = blake2b(digest_size=16)
    for row in rows:
        content.update(
            f"{row.node} {row.launch} {row.taken_at} {len(row.body)} ".encode() + row.body
        )
    return content.digest()


async def collect_steps(tower: Tower, overview: JobOverview) -> StepsShown | None:
    """Return the steps of a live job; None before there are points."""
    name = overview.summary.job
    steps = view_steps(tower, name)
    if steps is None:
        return None
    listed = await list_incidents(tower, IncidentFilter(job=name), MARKED)
    return show_steps(steps, listed.items)
