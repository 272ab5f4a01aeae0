"""Routes by which people act: silences, and "was this right?" with what the answers show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, HTTPException, Path
from pydantic import Field

from watchtower.api import openapi
from watchtower.api.answers import IncidentId, PersonName, find_known_id, known
from watchtower.tower.acts import Answer
from watchtower.tower.stored_incidents import read_incident
from watchtower.tower.tower import Tower
from watchtower.views.people import (
    Calibration,
    FeedbackView,
    SilenceView,
    Subject,
    view_feedback,
    view_silence,
)
from watchtower.views.verdict import verdict_of
from watchtower.wire.bounds import MAX_RANK, MAX_SILENCE_S, MAX_TEXT
from watchtower.wire.verdict import Cause

SilenceId = Annotated[str, Path(description="Id of the silence, as /api/v1/silences lists it.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceRequest:
    """One job, node or user to silence, for how long, and why."""

    for_s: Annotated[
        float,
        Field(
            strict=True,
            description=f"Seconds from now, 1 to {MAX_SILENCE_S:g}.",
            examples=[7200],
        ),
    ]
    job: Annotated[
        str, Field(description="Name of a job, as /api/v1/jobs lists it.", examples=["llama-70b"])
    ] = ""
    node: Annotated[
        str,
        Field(
            description="Name of a node: incidents whose suspects are all on it are silenced.",
            examples=["gpu-042"],
        ),
    ] = ""
    user: Annotated[
        str, Field(description="User of jobs, as their labels name it.", examples=["alice"])
    ] = ""
    reason: Annotated[
        str, Field(description="Text that is shown with the silence.", examples=["new switch"])
    ] = ""
    by: PersonName = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceList:
    """Silences in force: those of jobs, nodes and users, each by name."""

    items: list[SilenceView]


def silence_routes(tower: Tower) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter(prefix="/api/v1/silences", tags=[openapi.SILENCES])

    @router.get("")
    async def list_silences() -> SilenceList:
        """List the jobs, nodes and users whose alerts are silenced now."""
        return SilenceList(items=[view_silence(silence) for silence in tower.silences.all()])

    @router.post("")
    async def add_silence(asked: SilenceRequest) -> SilenceView:
        """Silence the alerts of a job, node or user for a while.

        Jobs are watched and diagnosed as before. The job, node or user need not be known yet. The
        silence replaces an earlier one of the same job, node or user.
        """
        named = Subject(job=asked.job, node=asked.node, user=asked.user)
        added = await tower.silences.add(named, asked.for_s, asked.reason, asked.by or "")
        return view_silence(added)

    @router.delete("/{silence}")
    async def remove_silence(silence: SilenceId) -> SilenceView:
        """End a silence: alerts of open incidents fire again."""
        removed = await tower.silences.remove(silence)
        if removed is None:
            raise HTTPException(404, f"there is no silence {silence!r}")
        return view_silence(removed)

    return router


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackRequest:
    """Whether the verdict of an incident was right, and what would have been right."""

    right: Annotated[
        bool, Field(description="Whether the verdict was right.", examples=[False], strict=True)
    ]
    rank: Annotated[
        int | None,
        Field(
            strict=True,
            ge=0,
            le=MAX_RANK,
            description="The rank that really held up the job, if the verdict was wrong.",
            examples=[40],
        ),
    ] = None
    cause: Annotated[
        Cause | None,
        Field(description="The real cause, if the verdict was wrong.", examples=["network_wait"]),
    ] = None
    by: PersonName = None
    note: Annotated[
        str,
        Field(
            max_length=MAX_TEXT,
            description="Text shown with the incident.",
            examples=["a cable of gpu-051 was broken"],
        ),
    ] = ""


def feedback_routes(tower: Tower) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter(prefix="/api/v1", tags=[openapi.INCIDENTS])

    @router.post("/incidents/{incident}/feedback")
    async def give_feedback(incident: IncidentId, given: FeedbackRequest) -> FeedbackView:
        """Judge whether the verdict of an incident was right.

        The answer is about the current verdict. It replaces an earlier answer about the incident.
        """
        ident = await find_known_id(tower, incident)
        found = known(await read_incident(tower, ident), incident)
        answer = Answer(
            right=given.right,
            rank=given.rank,
            cause=given.cause,
            by=given.by or "",
            note=given.note,
        )
        return view_feedback(
            await tower.feedback.give(found, verdict_of(tower.moment(), found), answer)
        )

    @router.get(
        "/calibration",
    )
    async def get_calibration() -> Calibration:
        """Return how often verdicts were right, by their confidence, as people answered.

        Each incident counts once, by its newest answer. Incidents of drills do not count.
        """
        return tower.feedback.calibrate()

    return router
