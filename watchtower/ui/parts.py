"""The parts of the incident page, in the order in which the page shows them.

A part is a template `templates/parts/NAME.html` and a function that returns the values for it. The
template finds them as `part`. If the function returns None, the page leaves the part out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from watchtower.tower.history import IncidentDetail
from watchtower.tower.tower import Tower


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One section of the incident page."""

    name: str
    """Its id on the page and the name of its template: "graph", "ranks", "stacks"."""
    title: str
    """Its heading."""
    collect: Callable[[Tower, IncidentDetail], Awaitable[Any]]
    """Returns a dataclass or a mapping for the template; None if there is nothing to show. The
    values must not change with time alone: write the time at which something began, not its age."""


PARTS: tuple[Part, ...] = ()
"""All parts. To add one, add a template in `templates/parts` and a line here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledPart:
    """A part with its values, as the template of the page uses it."""

    name: str
    title: str
    template: str
    values: Any


async def fill_parts(
    tower: Tower, incident: IncidentDetail, parts: tuple[Part, ...] = PARTS
) -> list[FilledPart]:
    """Return the parts that have something to show."""
    filled = []
    for part in parts:
        values = await part.collect(tower, incident)
        if values is not None:
            template = f"parts/{part.name}.html"
            filled.append(
                FilledPart(name=part.name, title=part.title, template=template, values=values)
            )
    return filled
