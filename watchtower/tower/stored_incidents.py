"""Reads incidents, from the store and those that are not stored yet, and makes their views.

A cursor of a list is the position of the last incident of a page. New incidents come before it, so
that they neither repeat nor hide an incident of a later page.
"""

from __future__ import annotations

import asyncio
import math
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import replace

from watchtower.diagnoser.summaries import read_summary as read_summary_text
from watchtower.incidents.incident import Incident, StackGroup
from watchtower.incidents.incident_filter import IncidentFilter, Position, accepts, position_of
from watchtower.jobs.tracing import choose_suspects
from watchtower.store.values import SeriesRow, read_case
from watchtower.tower.acts import RequestRefusedError
from watchtower.tower.store_writer import StoreFailedError
from watchtower.tower.tower import Tower
from watchtower.views.case_summary import (
    CaseSummary,
)
from watchtower.views.incident import (
    IncidentDetail,
    IncidentList,
    IncidentOverview,
    IncidentSeries,
    OutputView,
    Received,
    summarize_incident,
    survey_incident,
    view_incident,
    view_outputs,
    view_series,
)
from watchtower.views.people import view_feedback
from watchtower.views.stacks import list_main_stacks, list_whole_stacks
from watchtower.views.verdict import (
    OwnedVerdict,
    find_owner,
    live_verdict,
    owner_of_incident,
    verdict_of,
)

MAX_CURSOR = 128
"""Characters of a cursor. Ours have about 60."""

_CURSOR = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_CURSOR}}}")
_POSITION = re.compile(r"(0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,4}) ([0-9A-Za-z-]{1,64})")


def write_cursor(position: Position) -> str:
    """Return a position as text without a meaning to the reader."""
    text = f"{position.opened_at.hex()} {position.id}"
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(text: str) -> Position:
    """Return the position of a cursor. Raises RequestRefusedError."""
    try:
        if not _CURSOR.fullmatch(text):
            raise ValueError
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
        found = _POSITION.fullmatch(raw)
        opened_at = float.fromhex(found[1]) if found else math.nan
        if not found or not math.isfinite(opened_at):
            raise ValueError
    except (ValueError, OverflowError):
        raise RequestRefusedError(
            "`cursor` is not valid: use `next_cursor` of the last answer, or leave it out"
        ) from None
    return Position(opened_at=opened_at, id=found[2])


async def read_incident(
    tower: Tower, incident_id: str, *, with_case: bool = False
) -> Incident | None:
    """Return the current state of one incident, stored or not yet; None if the id is unknown.

    The case of a large job has 29 MB: `with_case` reads it.
    """
    unsaved = _find_unsaved(tower, incident_id)
    if unsaved is not None and (unsaved.evidence is not None or not with_case):
        return unsaved
    writer = tower.store_writer
    try:
        stored = await writer.read(writer.store.incident(incident_id, with_case=with_case))
    except StoreFailedError:
        if unsaved is None:
            raise
        return unsaved
    if unsaved is not None and stored is not None:
        return replace(unsaved, evidence=stored.evidence)
    return unsaved or stored


async def read_incidents(tower: Tower, chosen: IncidentFilter, limit: int) -> list[Incident]:
    """Return incidents, newest first: from the store, and those that are not stored yet.

    If the store cannot be read, return only the latter. Raises StoreFailedError if there are none.
    """
    writer = tower.store_writer
    unsaved = writer.unsaved(None)
    try:
        # A stored incident may not meet the conditions any more: its new state is not stored yet.
        stored = await writer.read(writer.store.incidents(chosen, limit + len(unsaved)))
    except StoreFailedError:
        if not any(accepts(chosen, one) for one in unsaved):
            raise
        stored = []
    known = {one.id: one for one in (*stored, *unsaved)}
    accepted = [one for one in known.values() if accepts(chosen, one)]
    return sorted(accepted, key=position_of, reverse=True)[:limit]


async def read_summary(tower: Tower, incident_id: str) -> CaseSummary | None:
    """Return what pages show of an incident's case; None for an incident without a summary."""
    unsaved = _find_unsaved(tower, incident_id)
    body = unsaved.summary if unsaved is not None else None
    if body is None:
        writer = tower.store_writer
        body = await writer.read(writer.store.summary(incident_id))
    return read_summary_text(body) if body is not None else None


def _find_unsaved(tower: Tower, incident_id: str) -> Incident | None:
    return next((one for one in tower.store_writer.unsaved(None) if one.id == incident_id), None)


ID_LENGTH = 26
"""Characters of an id (ULID)."""

MAX_CANDIDATES = 5
"""Incidents that the error of an ambiguous id lists."""


class AmbiguousIdError(Exception):
    """Several ids begin with the given text. The message lists some of them."""

    def __init__(self, text: str, found: list[tuple[str, str]]) -> None:
        """`found` has id and job of each candidate, and one more than `MAX_CANDIDATES` if there are
        more."""
        shown = found[:MAX_CANDIDATES]
        self.candidates = [ident for ident, _ in shown]
        names = ", ".join(f"{ident} (job {job})" for ident, job in shown)
        more = " and more" if len(found) > len(shown) else ""
        super().__init__(f"several incidents begin with {text!r}: {names}{more}")


async def find_incident_id(tower: Tower, text: str) -> str | None:
    """Return the id that is equal to `text` or uniquely begins with it; None if no id does.

    Lower case is accepted. Raises AmbiguousIdError, StoreFailedError.
    """
    if not text or len(text) > ID_LENGTH:
        return None
    found: dict[str, str] = {}
    for prefix in dict.fromkeys((text, text.upper())):
        found |= await _find(tower, prefix)
        if prefix in found:
            return prefix
    candidates = sorted(found.items())
    if len(candidates) > 1:
        raise AmbiguousIdError(text, candidates)
    return candidates[0][0] if candidates else None


async def _find(tower: Tower, prefix: str) -> dict[str, str]:
    """Return the jobs of incidents whose id begins with `prefix`, by id, at most
    `MAX_CANDIDATES` + 1."""
    writer = tower.store_writer
    unsaved = {one.id: one.job for one in writer.unsaved(None) if one.id.startswith(prefix)}
    try:
        stored = await writer.read(writer.store.incident_ids(prefix, MAX_CANDIDATES + 1))
    except StoreFailedError:
        if not unsaved:
            raise
        stored = []
    return dict(sorted({**unsaved, **dict(stored)}.items())[: MAX_CANDIDATES + 1])


async def owned_verdict(tower: Tower, incident_id: str) -> OwnedVerdict | None:
    """Return the verdict of one incident and the owner of its job; None if the id is unknown."""
    incident = await read_incident(tower, incident_id, with_case=False)
    if incident is None:
        return None
    return OwnedVerdict(
        verdict=verdict_of(tower.moment(), incident), owner=owner_of_incident(incident)
    )


async def job_verdict(tower: Tower, job: str) -> OwnedVerdict | None:
    """Return the verdict of a live job, else of its latest incident; None without either."""
    moment = tower.moment()
    live = live_verdict(moment, job)
    if live is not None:
        return OwnedVerdict(verdict=live, owner=find_owner(moment, job))
    for last in await read_incidents(tower, IncidentFilter(job=job), 1):
        return OwnedVerdict(verdict=last.verdict, owner=owner_of_incident(last))
    return None


async def list_incidents(tower: Tower, chosen: IncidentFilter, limit: int) -> IncidentList:
    """Return the newest incidents that meet the conditions."""
    incidents = await read_incidents(tower, chosen, limit + 1)
    shown, moment = incidents[:limit], tower.moment()
    has_more = len(incidents) > limit
    return IncidentList(
        items=[summarize_incident(moment, incident) for incident in shown],
        next_cursor=write_cursor(position_of(shown[-1])) if has_more else None,
    )


async def get_incident(tower: Tower, incident_id: str) -> IncidentDetail | None:
    """Return one incident; None if the id is unknown."""
    incident = await read_incident(tower, incident_id)
    if incident is None:
        return None
    feedback = tower.feedback.find(incident.id)
    return view_incident(
        tower.moment(),
        incident,
        stacks=await _read_stacks(tower, incident_id),
        feedback=view_feedback(feedback) if feedback else None,
        outputs=await list_outputs(tower, incident.id),
    )


async def _read_stacks(tower: Tower, incident_id: str) -> list[StackGroup]:
    """Return the distinct main-thread stacks of the last dumps, rarest first."""
    summary = await read_summary(tower, incident_id)
    found = list_whole_stacks(summary.stacks) if summary is not None else None
    if found is None:
        incident = await read_incident(tower, incident_id, with_case=True)
        # The case of a large job is decoded in a thread, so that reports are not delayed.
        case = await asyncio.to_thread(read_case, incident) if incident is not None else None
        found = list_main_stacks(case) if case is not None else []
    return found


async def find_incident_overview(tower: Tower, incident_id: str) -> IncidentOverview | None:
    """Return what is known of one incident; None if the id is unknown. Raises StoreFailedError."""
    incident = await read_incident(tower, incident_id, with_case=False)
    return survey_incident(tower.moment(), incident) if incident is not None else None


async def find_series(tower: Tower, incident_id: str) -> IncidentSeries | None:
    """Return the series of an incident; None if the id is unknown. Raises StoreFailedError."""
    incident = await read_incident(tower, incident_id, with_case=False)
    if incident is None:
        return None
    received = decode_rows(await read_rows(tower, incident.id))
    return view_series(incident.id, received, choose_suspects(incident.verdict))


async def read_rows(tower: Tower, incident_id: str) -> list[SeriesRow]:
    """Return the stored messages of an incident with its series. Raises StoreFailedError."""
    writer = tower.store_writer
    return await writer.read(writer.store.series(incident_id))


def decode_rows(rows: Iterable[SeriesRow]) -> list[Received]:
    """Return stored messages with their contents. Unreadable ones are left out."""
    return [
        Received(row.node, row.taken_at, batch)
        for row in rows
        if (batch := row.batch()) is not None
    ]


async def list_outputs(tower: Tower, incident_id: str) -> list[OutputView]:
    """Return the stored lines of an incident; none while the store cannot be read."""
    try:
        return list(view_outputs(decode_rows(await read_rows(tower, incident_id))))
    except StoreFailedError:
        return []


async def find_job_summary(tower: Tower, name: str) -> CaseSummary | None:
    """Return the summary of the current diagnosis of a live job; None without one.

    After a restart of the tower, it is that of the open incident.
    """
    keeper = tower.moment().find(name)
    if keeper is None:
        return None
    live = keeper.judged
    if live.diagnoses.summary is not None:
        return read_summary_text(live.diagnoses.summary)
    incident = live.current_incident
    return await read_summary(tower, incident.id) if incident is not None else None
