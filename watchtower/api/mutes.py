"""Routes about silences: jobs whose alerts do not fire for a while. In the API they are "mutes"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, HTTPException
from pydantic import Field

from watchtower.api import examples
from watchtower.api.parameters import JobName, answer
from watchtower.tower.silences import SilenceView, view_silence
from watchtower.tower.tower import Tower
from watchtower.wire.bounds import MAX_SILENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceRequest:
    """How long the alerts of a job are silenced, and why."""

    for_s: Annotated[
        float, Field(description=f"Seconds from now, 1 to {MAX_SILENCE_S:g}.", examples=[7200])
    ]
    reason: Annotated[
        str, Field(description="Text that is shown with the job.", examples=["new switch"])
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceList:
    """Jobs whose alerts are silenced, by name."""

    items: list[SilenceView]


def mute_routes(tower: Tower) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter(prefix="/api/v1")

    @router.get("/mutes", responses=answer(examples.MUTES, "Silences in force"))
    async def list_mutes() -> SilenceList:
        """List the jobs whose alerts are silenced now. Such a job need not be live."""
        return SilenceList(items=[view_silence(silence) for silence in tower.silences.all()])

    @router.post("/jobs/{job:job}/mute", responses=answer(examples.MUTE, "The silence"))
    async def mute_job(job: JobName, asked: SilenceRequest) -> SilenceView:
        """Silence the alerts of a job for a while.

        The job is watched and diagnosed as before. It need not run yet.
        """
        return view_silence(await tower.silences.add(job, asked.for_s, asked.reason))

    @router.delete("/jobs/{job:job}/mute", responses=answer(examples.UNMUTED, "The job"))
    async def unmute_job(job: JobName) -> dict[str, str]:
        """End the silence of a job: its alerts fire again."""
        if not await tower.silences.remove(job):
            raise HTTPException(404, f"the alerts of job {job!r} are not silenced")
        return {"job": job}

    return router
