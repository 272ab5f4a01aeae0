"""Routes about mutes: jobs that page nobody for a while."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, HTTPException

from watchtower.tower.paging import MuteView, view_mute
from watchtower.tower.tower import Tower


@dataclass(frozen=True, slots=True, kw_only=True)
class MuteRequest:
    """How long a job is to page nobody, and why."""

    for_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MuteList:
    """Muted jobs, by name."""

    items: list[MuteView]


def mute_routes(tower: Tower) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter(prefix="/api/v1")

    @router.get("/mutes")
    async def list_mutes() -> MuteList:
        """List the jobs that page nobody at present; a muted job need not be live."""
        return MuteList(items=[view_mute(mute) for mute in tower.paging.mutes()])

    @router.post("/jobs/{job:job}/mute")
    async def mute_job(job: str, asked: MuteRequest) -> MuteView:
        """Let the job page nobody for a while. It is watched as before, and need not run yet."""
        return view_mute(await tower.paging.mute(job, asked.for_s, asked.reason))

    @router.delete("/jobs/{job:job}/mute")
    async def unmute_job(job: str) -> dict[str, str]:
        """Let the job page again."""
        if not await tower.paging.unmute(job):
            raise HTTPException(
                404, f"job {job!r} is not muted; /api/v1/mutes lists those that are"
            )
        return {"job": job}

    return router
