"""The parameters of the list of incidents."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from watchtower.incidents.incident_filter import IncidentFilter
from watchtower.tower.cursors import MAX_CURSOR, read_cursor
from watchtower.wire.bounds import MAX_NAME
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
