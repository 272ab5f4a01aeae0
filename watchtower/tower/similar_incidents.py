"""Earlier incidents with the same node, line or cause, as the API and the pages show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchtower.incidents.incident import Incident
from watchtower.incidents.incident_filter import IncidentFilter, position_of
from watchtower.incidents.similar import Likeness, Traits, choose, compare, traits_of
from watchtower.tower.stored_incidents import read_incident, read_incidents
from watchtower.tower.tower import Tower
from watchtower.wire.drills import is_drill
from watchtower.wire.verdict import Cause, Status
from watchtower.writing.ranksets import format_ranks
from watchtower.writing.times import DAY, rfc3339

WINDOW_DAYS = 30
"""Days before the incident in which the incidents of its nodes are counted."""

MAX_COUNTED = 100
"""Incidents of one node that are counted. A node with more needs no exact number."""

MAX_FOUND = 50
"""Incidents with one line or cause that are compared: more than an answer contains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarIncident:
    """An earlier incident, and what is the same in it."""

    id: str
    job: str
    status: Status
    cause: Cause | None
    suspect_ranks: str
    """Rank set, such as "0-6,8"."""
    summary: str
    opened_at: str
    closed_at: str | None
    same_nodes: list[str]
    """Nodes of ranks that both verdicts name."""
    same_lines: list[str]
    """Lines of code of ranks that both verdicts name."""
    same_cause: bool
    """Whether both verdicts name the same cause."""
    why: str
    """The shared properties, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHistory:
    """How often verdicts named ranks on a node in the 30 days before an incident."""

    node: str
    incident_count: int
    """At most 100 are counted."""
    same_line_count: int
    """Those of them with a line of this incident."""
    same_cause_count: int
    """Those of them with the cause of this incident."""
    text: str
    """The same as a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarList:
    """Earlier incidents with the same node, line or cause, newest first."""

    items: list[SimilarIncident]
    node_counts: list[NodeHistory]
    """For the first nodes that the verdict names, if they had earlier incidents."""


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
    items = [_view(*found[place]) for place in chosen]
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
            histories.append(_count(node, recent))
    for line in traits.lines:
        await read(IncidentFilter(where=line, before=before, drills=drills), MAX_FOUND)
    if traits.cause is not None:
        await read(IncidentFilter(cause=traits.cause, before=before, drills=drills), MAX_FOUND)
    return Earlier(similar=tuple(found.values()), histories=tuple(histories))


def _traits_of(incident: Incident) -> Traits:
    return traits_of(incident.verdict.cause, incident.verdict.suspects)


def _count(node: str, recent: Sequence[Likeness]) -> NodeHistory:
    count, lines = len(recent), sum(bool(each.lines) for each in recent)
    causes = sum(each.cause for each in recent)
    text = "1 earlier incident" if count == 1 else f"{count} earlier incidents"
    text = f"at least {text}" if count == MAX_COUNTED else text
    at_line = f", {lines} at the same line" if lines else ""
    with_cause = f", {causes} with the same cause" if causes else ""
    return NodeHistory(
        node=node,
        incident_count=count,
        same_line_count=lines,
        same_cause_count=causes,
        text=f"{node}: {text} in {WINDOW_DAYS} days{at_line}{with_cause}",
    )


def _view(incident: Incident, likeness: Likeness) -> SimilarIncident:
    verdict = incident.verdict
    return SimilarIncident(
        id=incident.id,
        job=incident.job,
        status=incident.status,
        cause=verdict.cause,
        suspect_ranks=format_ranks(suspect.rank for suspect in verdict.suspects),
        summary=verdict.summary,
        opened_at=rfc3339(incident.opened_at),
        closed_at=None if incident.closed_at is None else rfc3339(incident.closed_at),
        same_nodes=list(likeness.nodes),
        same_lines=list(likeness.lines),
        same_cause=likeness.cause,
        why=_write_why(likeness),
    )


def _write_why(likeness: Likeness) -> str:
    """Return "same node gpu-042, same line data.py:88 in __next__, same cause"."""
    parts = [
        *(f"same node {node}" for node in likeness.nodes),
        *(f"same line {line}" for line in likeness.lines),
        *(("same cause",) if likeness.cause else ()),
    ]
    return ", ".join(parts)
