"""Routes about silences: jobs whose alerts are off for a while. Their public name is mutes."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, HTTPException

from watchtower.tower.silences import SilenceView, view_silence
from watchtower.tower.tower import Tower


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceRequest:
    """For how long the alerts of a job are off, and why."""

    for_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceList:
    """Silenced jobs, by name."""

    items: list[SilenceView]


def mute_routes(tower: Tower) -> APIRouter:
    """Routes of one tower."""
    router = APIRouter(prefix="/api/v1")

    @router.get("/mutes")
    async def list_mutes() -> SilenceList:
        """List the jobs whose alerts are silenced now. A silenced job need not be live."""
        return SilenceList(items=[view_silence(silence) for silence in tower.silences.all()])

    @router.post("/jobs/{job:job}/mute")
    async def mute_job(job: str, asked: SilenceRequest) -> SilenceView:
        """Silence the job's alerts for a while. It is watched as before, and need not run yet."""
        return view_silence(await tower.silences.add(job, asked.for_s, asked.reason))

    @router.delete("/jobs/{job:job}/mute")
    async def unmute_job(job: str) -> dict[str, str]:
        """Turn the job's alerts on again."""
        if not await tower.silences.remove(job):
            raise HTTPException(
                404, f"job {job!r} is not muted; /api/v1/mutes lists those that are"
            )
        return {"job": job}

    return router
