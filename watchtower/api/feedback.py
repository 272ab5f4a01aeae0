"""Routes about "was this right?": people's answers about verdicts, and what they show together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, HTTPException
from pydantic import Field

from watchtower.api import examples, openapi
from watchtower.api.parameters import IncidentId, PersonName, answer
from watchtower.tower.feedback import Answer, Calibration, FeedbackView, view_feedback
from watchtower.tower.incident_ids import find_incident_id
from watchtower.tower.incident_verdicts import verdict_of
from watchtower.tower.stored_incidents import read_incident
from watchtower.tower.tower import Tower
from watchtower.wire.bounds import MAX_RANK, MAX_TEXT
from watchtower.wire.verdict import Cause


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

    @router.post(
        "/incidents/{incident}/feedback", responses=answer(examples.FEEDBACK, "The answer")
    )
    async def give_feedback(incident: IncidentId, given: FeedbackRequest) -> FeedbackView:
        """Judge whether the verdict of an incident was right.

        The answer is about the current verdict. It replaces an earlier answer about the incident.
        """
        ident = await find_incident_id(tower, incident)
        found = await read_incident(tower, ident) if ident else None
        if found is None:
            raise HTTPException(404, f"there is no incident {incident!r}")
        answer = Answer(
            right=given.right,
            rank=given.rank,
            cause=given.cause,
            by=given.by or "",
            note=given.note,
        )
        return view_feedback(await tower.feedback.give(found, verdict_of(tower, found), answer))

    @router.get(
        "/calibration",
        responses=answer(examples.CALIBRATION, "Right and wrong verdicts by confidence"),
    )
    async def get_calibration() -> Calibration:
        """Return how often verdicts were right, by their confidence, as people answered.

        Each incident counts once, by its newest answer. Incidents of drills do not count.
        """
        return tower.feedback.calibrate()

    return router
