"""The page with the list of incidents: which it shows, by its address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from pydantic import ValidationError
from starlette.exceptions import HTTPException

from watchtower.api.incidents import IncidentQuery
from watchtower.api.problems import describe_mistake
from watchtower.incidents.incident_filter import IncidentFilter
from watchtower.tower.incident_views import IncidentList, IncidentSummary
from watchtower.tower.request_checks import RequestRefusedError
from watchtower.wire.verdict import Cause, Domain, Status

FIELDS = ("status", "cause", "domain", "node", "user", "job", "since", "cursor")
"""Parameters of the address. They are those of /api/v1/incidents."""

CHOICES = {"status": Status, "cause": Cause, "domain": Domain}


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentsShown:
    """The content of the page."""

    items: list[IncidentSummary]
    chosen: dict[str, str]
    """The parameters that were given."""
    choices: dict[str, list[str]]
    """The choices of the form, by parameter."""
    older: str
    """The query of the next page; empty on the last one."""


def read_address(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the known parameters of an address that are not empty."""
    found = {name: parameters.get(name, "").strip() for name in FIELDS}
    return {name: text for name, text in found.items() if text}


def make_filter(chosen: Mapping[str, str]) -> IncidentFilter:
    """Return which incidents the parameters choose. Raises HTTPException 422.

    Incidents of drills are listed, too: people open them to try the pages.
    """
    try:
        return IncidentQuery.model_validate({**chosen, "drills": True}).as_filter()
    except RequestRefusedError as error:
        raise HTTPException(422, str(error)) from None
    except ValidationError as error:
        mistakes = ({**each, "loc": ("query", *each["loc"])} for each in error.errors())
        raise HTTPException(422, "; ".join(map(describe_mistake, mistakes))) from None


def show_incidents(page: IncidentList, chosen: Mapping[str, str]) -> IncidentsShown:
    """Return what the page shows."""
    given = {name: text for name, text in chosen.items() if name != "cursor"}
    cursor = page.next_cursor
    return IncidentsShown(
        items=page.items,
        chosen=given,
        choices={name: [each.value for each in kind] for name, kind in CHOICES.items()},
        older=urlencode({**given, "cursor": cursor}) if cursor else "",
    )
