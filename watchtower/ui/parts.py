"""The parts of the pages of an incident and of a job, in the order in which the page shows them.

A part is a template `templates/parts/NAME.html` and a function that returns the values for it. The
template finds them as `part`. If the function returns None, the page leaves the part out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from watchtower.incidents.incident_filter import IncidentFilter
from watchtower.jobs.tracing import choose_suspects
from watchtower.store.values import SeriesRow
from watchtower.tower.similar_incidents import find_similar
from watchtower.tower.stored_incidents import decode_rows, list_incidents, read_rows
from watchtower.tower.tower import Tower
from watchtower.ui.case_parts import (
    collect_contrast,
    collect_graph,
    collect_incident_ranks,
    collect_job_ranks,
    collect_stacks,
)
from watchtower.ui.steps_part import StepsShown, show_steps
from watchtower.ui.traces_part import TracesShown, show_traces
from watchtower.views.advisories import AdvisoryList, list_advisories
from watchtower.views.incident import IncidentOverview, SimilarList, view_series
from watchtower.views.job import JobOverview, view_steps
from watchtower.views.people import view_feedback
from watchtower.wire.verdict import Cause

SHOWN = 5
"""Earlier incidents on the page. The API lists more."""


async def collect_earlier(tower: Tower, overview: IncidentOverview) -> SimilarList | None:
    """Return earlier incidents with the same node, line or cause; None if there are none."""
    found = await find_similar(tower, overview.incident.id, SHOWN)
    return found if found is not None and (found.items or found.node_counts) else None


async def collect_feedback(tower: Tower, overview: IncidentOverview) -> dict[str, Any]:
    """Return what a person answered about the verdict, and the causes to choose from."""
    given = tower.feedback.find(overview.incident.id)
    return {
        "given": view_feedback(given) if given else None,
        "causes": [cause.value for cause in Cause if cause is not Cause.UNKNOWN],
    }


MAX_ADVISORIES = 20
"""Advisories on one page, the worst first. The API lists more."""

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
        drawn = show_traces(view_series(ident, decode_rows(rows), suspects), stalled_at)
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
    steps = view_steps(tower.moment(), name)
    if steps is None:
        return None
    listed = await list_incidents(tower, IncidentFilter(job=name), MARKED)
    return show_steps(steps, listed.items)


async def collect_health(tower: Tower, overview: JobOverview) -> AdvisoryList | None:
    """Return the advisories of a live job and its nodes; None if there are none."""
    found = list_advisories(tower.moment(), overview.summary.job, limit=MAX_ADVISORIES)
    return found if found.items else None


Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Generic[Subject]):
    """One section of a page about a subject: an IncidentOverview or a JobOverview."""

    name: str
    """Its id on the page and the name of its template: "graph", "ranks", "stacks"."""
    title: str
    """Its heading."""
    collect: Callable[[Tower, Subject], Awaitable[Any]]
    """Returns a dataclass or a mapping for the template; None if there is nothing to show. The
    values must not change with time alone: write the time at which something began, not its age."""
    is_below: bool = False
    """Whether it is below the timeline, because it is about other incidents or asks a question."""
    is_wide: bool = False
    """Whether it takes the whole width of the page."""


PARTS: tuple[Part[IncidentOverview], ...] = (
    Part(name="graph", title="Which rank waits for which", collect=collect_graph),
    Part(name="contrast", title="How the suspect differs", collect=collect_contrast, is_wide=True),
    Part(name="ranks", title="Ranks", collect=collect_incident_ranks, is_wide=True),
    Part(name="traces", title="Before the stall and in it", collect=collect_traces),
    Part(name="stacks", title="Stacks", collect=collect_stacks, is_wide=True),
    Part(name="earlier", title="Earlier incidents", collect=collect_earlier, is_below=True),
    Part(name="feedback", title="Was this right?", collect=collect_feedback, is_below=True),
)
"""The parts of the page of an incident. To add one, add a template in `templates/parts` and a line
here."""

JOB_PARTS: tuple[Part[JobOverview], ...] = (
    Part(name="health", title="Health", collect=collect_health, is_wide=True),
    Part(name="steps", title="Steps", collect=collect_steps),
    Part(name="ranks", title="Ranks", collect=collect_job_ranks, is_wide=True),
    Part(name="graph", title="Which rank waits for which", collect=collect_graph),
    Part(name="contrast", title="How the suspect differs", collect=collect_contrast, is_wide=True),
    Part(name="stacks", title="Stacks", collect=collect_stacks, is_wide=True),
)
"""The parts of the page of a live job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledPart:
    """A part with its values, as the template of the page uses it."""

    name: str
    title: str
    template: str
    is_below: bool
    is_wide: bool
    values: Any


async def fill_parts(
    tower: Tower, subject: Subject, parts: tuple[Part[Subject], ...]
) -> list[FilledPart]:
    """Return the parts that have something to show."""
    filled = []
    for part in parts:
        values = await part.collect(tower, subject)
        if values is not None:
            filled.append(
                FilledPart(
                    name=part.name,
                    title=part.title,
                    template=f"parts/{part.name}.html",
                    is_below=part.is_below,
                    is_wide=part.is_wide,
                    values=values,
                )
            )
    return filled
