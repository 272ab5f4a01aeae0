"""The facts of a post-mortem: from the stored incident, and from its case while that is kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from watchtower.evidence.case import Case
from watchtower.incidents.incident import Incident
from watchtower.incidents.postmortem.writer import PostmortemFacts, WaitPicture, write_postmortem
from watchtower.store.values import read_case
from watchtower.tower.stored_incidents import read_incident, read_summary
from watchtower.tower.tower import Tower
from watchtower.views.case_summary import WaitBoxes
from watchtower.views.graph_svg import draw_graph
from watchtower.views.stacks import list_main_stacks
from watchtower.views.verdict import owner_of_incident, verdict_of
from watchtower.wire.verdict import Verdict
from watchtower.writing.documents import Document


async def make_postmortem(tower: Tower, incident_id: str, link: str) -> Document | None:
    """Return the post-mortem of an incident; None if the id is unknown.

    `link` is the address of the incident for people. Raises StoreFailedError.
    """
    incident = await read_incident(tower, incident_id, with_case=True)
    if incident is None:
        return None
    summary = await read_summary(tower, incident_id)
    writer = tower.store_writer
    sent = await writer.read(writer.store.deliveries(incident_id))
    verdict, now = verdict_of(tower.moment(), incident), tower.clock.wall()

    def write() -> Document:
        facts = gather_facts(incident, verdict, read_case(incident), link, now)
        waits = _draw(summary.waits) if summary is not None else None
        return write_postmortem(replace(facts, alerts=tuple(sent), waits=waits))

    # The case of a large job is decoded in a thread, so that reports are not delayed.
    return await asyncio.to_thread(write)


def _draw(waits: WaitBoxes) -> WaitPicture | None:
    """Return which ranks waited for which; None if no rank is known to have waited."""
    if not waits.boxes or not waits.sentence:
        return None
    return WaitPicture(svg=draw_graph(waits, is_file=True), sentence=waits.sentence)


def gather_facts(
    incident: Incident, verdict: Verdict, case: Case | None, link: str, now: float
) -> PostmortemFacts:
    """Return the facts. `verdict`: the current one. `case` is None if the evidence was deleted."""
    return PostmortemFacts(
        incident=replace(incident, verdict=verdict, evidence=None),
        now=now,
        as_of=_find_time(incident, verdict, now),
        owner=owner_of_incident(incident),
        link=link,
        stacks=None if case is None else tuple(list_main_stacks(case)),
    )


def _find_time(incident: Incident, verdict: Verdict, now: float) -> float:
    """Return the time until which the verdict counts the stall."""
    if incident.closed_at is not None:
        return incident.closed_at
    # The job of an open incident need not be live, for example after a restart of the tower.
    return incident.updated_at if verdict is incident.verdict else now
