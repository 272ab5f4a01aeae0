"""The parts of the pages of an incident and of a job, in the order in which the page shows them.

A part is a template `templates/parts/NAME.html` and a function that returns the values for it. The
template finds them as `part`. If the function returns None, the page leaves the part out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from watchtower.tower.incident_overviews import IncidentOverview
from watchtower.tower.job_overviews import JobOverview
from watchtower.tower.tower import Tower
from watchtower.ui.case_parts import collect_contrast, collect_graph, collect_stacks
from watchtower.ui.earlier import collect_earlier, collect_feedback
from watchtower.ui.rank_part import collect_incident_ranks, collect_job_ranks
from watchtower.ui.time_parts import collect_steps, collect_traces

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
