"""Routes about live jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from starlette.responses import Response

from watchtower.alerts.labels import NO_LINKS, AlertLinks
from watchtower.api import examples, openapi
from watchtower.api.job_paths import JOBS
from watchtower.api.parameters import JobName, WithDrills, answer
from watchtower.api.rendering import Format, VerdictFormat, write_verdict
from watchtower.tower.incident_verdicts import job_verdict
from watchtower.tower.job_steps import JobSteps, view_steps
from watchtower.tower.tower import Tower
from watchtower.tower.views import (
    JobSummary,
    JobView,
    VerdictView,
    summarize_jobs,
    view_job,
)
from watchtower.wire.verdict import Status

OfStatus = Annotated[Status | None, Query(description="Only jobs with this status.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """Live jobs, by name."""

    items: list[JobSummary]


def job_routes(tower: Tower, links: AlertLinks = NO_LINKS) -> APIRouter:
    """Routes of one tower. Longer paths come first, because a job's name may contain slashes."""
    router = APIRouter(prefix=JOBS, tags=[openapi.JOBS])

    @router.get("", responses=answer(examples.JOBS, "Live jobs, by name"))
    async def list_jobs(drills: WithDrills = False, status: OfStatus = None) -> JobList:
        """List the jobs that agents report."""
        return JobList(items=summarize_jobs(tower, drills, status))

    @router.get(
        "/{job:job}/verdict",
        response_model=VerdictView,
        responses=answer(examples.VERDICT, "The verdict, in the format asked for", examples.TEXTS),
    )
    async def get_verdict(
        job: JobName, shape: Format = VerdictFormat.JSON
    ) -> VerdictView | Response:
        """Return which rank hung the job, where and why.

        This is the current verdict of a live job. For a job that no agent reports, it is the
        verdict of its latest incident.
        """
        found = await job_verdict(tower, job)
        if found is None:
            raise HTTPException(404, _unknown(job))
        return write_verdict(found, shape, links)

    @router.get("/{job:job}/steps", responses=answer(examples.JOB_STEPS, "The step history"))
    async def get_steps(job: JobName) -> JobSteps:
        """Return the steps of a live job in the last 15 minutes and in the last 24 hours."""
        steps = view_steps(tower, job)
        if steps is None:
            raise HTTPException(404, _unknown(job))
        return steps

    @router.get("/{job:job}", responses=answer(examples.JOB_VIEW, "The job"))
    async def get_job(job: JobName) -> JobView:
        """Return a live job with its ranks, nodes and verdict."""
        view = view_job(tower, job)
        if view is None:
            raise HTTPException(404, _unknown(job))
        return view

    return router


def _unknown(job: str) -> str:
    return f"there is no job {job!r}: no agent reports it, and it has no incident"
