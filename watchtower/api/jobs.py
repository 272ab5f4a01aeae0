"""Routes about live jobs."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, HTTPException
from starlette.responses import Response

from watchtower.api.job_paths import JOBS
from watchtower.api.rendering import Format, VerdictFormat, write_verdict
from watchtower.tower import history
from watchtower.tower.tower import Tower
from watchtower.tower.views import JobSummary, JobView, live_verdict, summarize_jobs, view_job
from watchtower.wire.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """Live jobs, by name."""

    items: list[JobSummary]


def job_routes(tower: Tower) -> APIRouter:
    """Routes of one tower. A job's name may hold slashes: longer paths are declared first."""
    router = APIRouter(prefix=JOBS)

    @router.get("")
    async def list_jobs() -> JobList:
        """List the live jobs."""
        return JobList(items=summarize_jobs(tower))

    @router.get("/{job:job}/verdict", response_model=Verdict)
    async def get_verdict(job: str, shape: Format = VerdictFormat.JSON) -> Verdict | Response:
        """Say who hung the job, where and why: its current verdict, else its latest incident's."""
        verdict = live_verdict(tower, job) or await history.last_verdict(tower, job)
        if verdict is None:
            raise HTTPException(404, _unknown(job))
        return verdict if shape is VerdictFormat.JSON else write_verdict(verdict, shape)

    @router.get("/{job:job}")
    async def get_job(job: str) -> JobView:
        """Show a live job with its ranks, nodes and verdict."""
        view = view_job(tower, job)
        if view is None:
            raise HTTPException(404, _unknown(job))
        return view

    return router


def _unknown(job: str) -> str:
    return f"there is no job {job!r}; /api/v1/jobs lists those that agents report"
