"""Routes about incidents, open and past, the documents about one, and outages."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from watchtower.alerts.labels import NO_LINKS, AlertLinks
from watchtower.api import openapi
from watchtower.api.answers import (
    DocumentFormat,
    DocumentShape,
    Format,
    IncidentId,
    Limit,
    PersonName,
    VerdictFormat,
    find_known_id,
    known,
    text_of,
    write_document,
    write_for_people,
)
from watchtower.incidents.incident_filter import IncidentFilter
from watchtower.tower import stored_incidents
from watchtower.tower.export import export_incident, redact_export
from watchtower.tower.postmortems import make_postmortem
from watchtower.tower.similar_incidents import MAX_FOUND, find_similar
from watchtower.tower.stored_incidents import MAX_CURSOR, find_series, owned_verdict, read_cursor
from watchtower.tower.tower import Tower
from watchtower.views.incident import IncidentDetail, IncidentList, IncidentSeries, SimilarList
from watchtower.views.outage import OutageView
from watchtower.views.outage import list_outages as view_outages
from watchtower.views.people import AckView, view_ack
from watchtower.wire.bounds import MAX_NAME, MAX_TEXT
from watchtower.wire.verdict import Cause, Domain, Status


def check_time(value: object) -> object:
    """Refuse numbers: pydantic would read them as seconds or milliseconds, by their size."""
    if isinstance(value, str) and not _DATE.match(value):
        raise PydanticCustomError("datetime_parsing", "a date is missing")
    return value


def check_domain(value: object) -> object:
    """Refuse an unknown domain. The type itself reads it as UNKNOWN, for data of other releases."""
    known = [domain.value for domain in Domain]
    if isinstance(value, str) and value not in known:
        raise PydanticCustomError("enum", "not known", {"expected": " or ".join(map(repr, known))})
    return value


_DATE = re.compile(r"\d{4}-\d\d-\d\d")

KnownDomain = Annotated[Domain, BeforeValidator(check_domain)]
Moment = Annotated[datetime, BeforeValidator(check_time)]
Name = Annotated[str, Field(max_length=MAX_NAME)]


class IncidentQuery(BaseModel):
    """Which incidents are listed. All given conditions must be met."""

    job: Name = Field("", description="Only incidents of the job with this name.")
    status: Status | None = Field(None, description="Only incidents with this status.")
    cause: Cause | None = Field(None, description="Only incidents whose verdict has this cause.")
    domain: KnownDomain | None = Field(
        None, description="Only incidents whose verdict says to call these people."
    )
    node: Name = Field("", description="Only incidents whose verdict names a rank on this node.")
    user: Name = Field("", description="Only incidents of jobs of this user, by their labels.")
    since: Moment | None = Field(
        None,
        description="Only incidents that opened then or later (RFC 3339; UTC without a zone).",
        examples=["2026-11-22T00:00:00Z"],
    )
    drills: bool = Field(
        False,
        description="Whether incidents of drills, whose jobs have names that begin with drill:, "
        "are listed. A named job is always listed.",
    )
    cursor: str = Field(
        "", max_length=MAX_CURSOR, description="`next_cursor` of the page before this one."
    )
    limit: int = Field(100, ge=1, le=1000, description="How many items are returned at most.")

    def as_filter(self) -> IncidentFilter:
        """Return the conditions. Raises RequestRefusedError if the cursor is not valid."""
        since = self.since
        if since is not None and since.tzinfo is None:
            since = since.replace(tzinfo=timezone.utc)
        return IncidentFilter(
            job=self.job,
            status=self.status,
            cause=self.cause,
            domain=self.domain,
            node=self.node,
            user=self.user,
            since=since.timestamp() if since else None,
            before=read_cursor(self.cursor) if self.cursor else None,
            drills=None if self.drills or self.job else False,
        )


SimilarLimit = Annotated[
    int, Query(ge=1, le=MAX_FOUND, description="How many items are returned at most.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AckRequest:
    """The person who works on an incident."""

    by: PersonName = None
    note: Annotated[
        str,
        Field(
            max_length=MAX_TEXT,
            description="Text shown with the incident.",
            examples=["checking NFS"],
        ),
    ] = ""


def incident_routes(tower: Tower, links: AlertLinks = NO_LINKS) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter(prefix="/api/v1/incidents", tags=[openapi.INCIDENTS])

    @router.get("")
    async def list_incidents(asked: Annotated[IncidentQuery, Query()]) -> IncidentList:
        """List incidents that meet all given conditions, newest first.

        If there are more, the answer has a cursor for the next page. Incidents that open in the
        meantime do not change the pages that follow.
        """
        return await stored_incidents.list_incidents(tower, asked.as_filter(), asked.limit)

    @router.get(
        "/{incident}",
        response_model=IncidentDetail,
    )
    async def get_incident(
        incident: IncidentId, shape: Format = VerdictFormat.JSON
    ) -> IncidentDetail | Response:
        """Return an incident with its verdict and the stacks that it was made from."""
        ident = await find_known_id(tower, incident)
        if shape is VerdictFormat.JSON:
            return known(await stored_incidents.get_incident(tower, ident), incident)
        verdict = await owned_verdict(tower, ident)
        return write_for_people(known(verdict, incident), shape, links)

    @router.get(
        "/{incident}/similar",
    )
    async def list_similar(incident: IncidentId, limit: SimilarLimit = 10) -> SimilarList:
        """List earlier incidents with the same node, line or cause, newest first.

        If there are more, those with the most in common are listed. Incidents of drills are
        compared with drills only.
        """
        ident = await find_known_id(tower, incident)
        return known(await find_similar(tower, ident, limit), incident)

    @router.get(
        "/{incident}/series",
    )
    async def get_series(incident: IncidentId) -> IncidentSeries:
        """Return what the suspects and a few healthy ranks did in the 15 minutes before."""
        ident = await find_known_id(tower, incident)
        return known(await find_series(tower, ident), incident)

    @router.post("/{incident}/ack")
    async def ack_incident(incident: IncidentId, request: AckRequest) -> AckView:
        """Acknowledge an incident: its alert ends, the incident stays open."""
        ident = await find_known_id(tower, incident)
        ack = await tower.acks.ack(ident, request.by or "", request.note)
        return view_ack(known(ack, incident))

    return router


Redact = Annotated[
    bool,
    Query(description="Whether names of jobs, nodes, users, paths and programs are replaced."),
]


def document_routes(tower: Tower, links: AlertLinks = NO_LINKS) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter(prefix="/api/v1/incidents", tags=[openapi.INCIDENTS])
    redacting = asyncio.Lock()

    @router.get(
        "/{incident}/export",
        response_model=dict[str, Any],
    )
    async def export(incident: IncidentId, redact: Redact = False) -> Response:
        """Return everything that the verdict was made from. `watchtower replay` reads it."""
        body = known(await export_incident(tower, await find_known_id(tower, incident)), incident)
        if redact:
            # A large export takes seconds, so that it is redacted in a thread, one at a time:
            # several threads would delay the replies to agents.
            async with redacting:
                body = await asyncio.to_thread(redact_export, body)
        return Response(body, media_type="application/json")

    @router.get(
        "/{incident}/postmortem",
        response_class=Response,
        responses=text_of("text/markdown", "text/html"),
    )
    async def get_postmortem(
        incident: IncidentId, shape: DocumentFormat = DocumentShape.MARKDOWN
    ) -> Response:
        """Return the post-mortem of an incident: what happened, why, and how to prevent it.

        It stays true after the end of the job. If retention has deleted the evidence, it says so.
        """
        ident = await find_known_id(tower, incident)
        found = await make_postmortem(tower, ident, links.details(ident))
        return write_document(known(found, incident), shape)

    return router


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageList:
    """Outages, newest first."""

    items: list[OutageView]


def outage_routes(tower: Tower) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter(prefix="/api/v1/outages", tags=[openapi.INCIDENTS])

    @router.get("")
    async def list_outages(limit: Limit = 100) -> OutageList:
        """List the outages of live jobs, newest first.

        An outage is two or more incidents with one shared cause that opened within two minutes.
        """
        return OutageList(items=view_outages(tower.moment(), limit))

    return router
