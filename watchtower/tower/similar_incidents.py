"""Earlier incidents with the same node, line or cause, as the API and the pages show them."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.incidents.incident import Incident
from watchtower.incidents.incident_filter import IncidentFilter, position_of
from watchtower.incidents.similar import Likeness, Traits, choose, compare, traits_of
from watchtower.tower.stored_incidents import read_incident, read_incidents
from watchtower.tower.tower import Tower
from watchtower.views.incident import (
    MAX_COUNTED,
    WINDOW_DAYS,
    NodeHistory,
    SimilarList,
    count_history,
    view_similar,
)
from watchtower.wire.drills import is_drill
from watchtower.writing.times import DAY

MAX_FOUND = 50
"""Incidents with one line or cause that are compared: more than an answer contains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """Earlier incidents that share traits of an incident, and the histories of its nodes."""

    similar: tuple[tuple[Incident, Likeness], ...]
    histories: tuple[NodeHistory, ...]


async def find_similar(tower: Tower, ident: str, limit: int) -> SimilarList | None:
    """Return at most `limit` incidents that are like one and older; None if the id is unknown.

    An incident of a drill is compared with drills only, and no other one with them. Raises
    StoreFailedError.
    """
    incident = await read_incident(tower, ident, with_case=False)
    if incident is None:
        return None
    earlier = await _find_earlier(tower, incident)
    found = {position_of(other): (other, likeness) for other, likeness in earlier.similar}
    chosen = choose(((place, likeness) for place, (_, likeness) in found.items()), limit)
    items = [view_similar(*found[place]) for place in chosen]
    return SimilarList(items=items, node_counts=list(earlier.histories))


async def _find_earlier(tower: Tower, incident: Incident) -> Earlier:
    traits, version = _traits_of(incident).subjects(), tower.feed.count
    known: Earlier | None = tower.similar.find((incident.id, traits), version)
    if known is None:
        known = await _read_earlier(tower, incident, traits)
        tower.similar.put((incident.id, traits), version, known)
    return known


async def _read_earlier(tower: Tower, incident: Incident, traits: Traits) -> Earlier:
    before, drills = position_of(incident), is_drill(incident.job)
    found, histories = dict[str, tuple[Incident, Likeness]](), []

    async def read(chosen: IncidentFilter, limit: int) -> list[tuple[Incident, Likeness]]:
        incidents = await read_incidents(tower, chosen, limit)
        pairs = [(each, compare(traits, _traits_of(each))) for each in incidents]
        found.update((each.id, pair) for each, pair in zip(incidents, pairs, strict=True))
        return pairs

    for node in traits.nodes:
        chosen = IncidentFilter(node=node, before=before, drills=drills)
        pairs = await read(chosen, MAX_COUNTED)
        since = incident.opened_at - WINDOW_DAYS * DAY
        recent = [likeness for each, likeness in pairs if each.opened_at >= since]
        if recent:
            histories.append(count_history(node, recent))
    for line in traits.lines:
        await read(IncidentFilter(where=line, before=before, drills=drills), MAX_FOUND)
    if traits.cause is not None:
        await read(IncidentFilter(cause=traits.cause, before=before, drills=drills), MAX_FOUND)
    return Earlier(similar=tuple(found.values()), histories=tuple(histories))


def _traits_of(incident: Incident) -> Traits:
    return traits_of(incident.verdict.cause, incident.verdict.suspects)
