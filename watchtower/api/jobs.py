"""Routes about live jobs. Those that examine a job now order dumps: they need an operator's token.

Any name of a job works in a path, also one with a slash. Servers decode a path before they route
it. A request of job `x/verdict` as `x%2Fverdict` would then return the verdict of job `x`. So the
path of a job is routed without decoding, and the name is decoded afterwards. A slash without
encoding works, unless the name ends with a route such as `/verdict`. The page of a job is at
`/jobs/NAME`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, TypeVar
from urllib.parse import unquote

from fastapi import APIRouter, HTTPException, Query
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from watchtower.alerts.labels import NO_LINKS, AlertLinks
from watchtower.api import openapi
from watchtower.api.answers import Format, JobName, VerdictFormat, WithDrills, write_verdict
from watchtower.tower.examination import (
    Examination,
    ExaminationRefusedError,
    RankNotReportedError,
    list_examined_stacks,
)
from watchtower.tower.stored_incidents import job_verdict
from watchtower.tower.tower import Tower
from watchtower.views.configuration import ConfigurationView, view_configuration
from watchtower.views.fleet import JobSummary, summarize_jobs
from watchtower.views.job import JobSteps, JobView, view_job, view_steps
from watchtower.views.stacks import StackList
from watchtower.views.verdict import OwnedVerdict, VerdictView, find_owner
from watchtower.wire.bounds import MAX_RANK
from watchtower.wire.verdict import Status

JOBS = "/api/v1/jobs"
PAGES = "/jobs"

_STARTS = tuple(f"{each}/".encode() for each in (JOBS, PAGES))


class _JobName(Convertor[str]):
    regex = ".+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("job", _JobName())


class RawJobPaths:
    """ASGI middleware that restores the encoded path of requests about a job."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request. The path of a job is the encoded path that the client sent."""
        raw: bytes = scope.get("raw_path") or b""
        if scope["type"] == "http" and raw.startswith(_STARTS):
            scope = {**scope, "path": raw.decode("ascii", "replace")}
        await self._app(scope, receive, send)


Rank = Annotated[int | None, Query(ge=0, le=MAX_RANK, description="Only the stacks of this rank.")]
AllThreads = Annotated[
    bool, Query(description="Whether all Python threads are listed, not only the main thread.")
]


def examination_routes(tower: Tower, links: AlertLinks = NO_LINKS) -> APIRouter:
    """Routes of one tower. They come before other routes of jobs, whose paths match more."""
    router = APIRouter(prefix=JOBS, tags=[openapi.JOBS])

    @router.post(
        "/{job:job}/verdict",
        response_model=VerdictView,
    )
    async def diagnose_now(
        job: JobName, shape: Format = VerdictFormat.JSON
    ) -> VerdictView | Response:
        """Dump all ranks of a live job and return a verdict, also if no rank is suspect.

        The agents dump every rank twice, which takes about two seconds. No incident opens and no
        alert is sent. Those who ask for the same job at the same time get the same answer.
        """
        verdict = (await _examine(tower, job)).verdict
        owned = OwnedVerdict(verdict=verdict, owner=find_owner(tower.moment(), job))
        return write_verdict(owned, shape, links)

    @router.post(
        "/{job:job}/stacks",
    )
    async def list_stacks_now(
        job: JobName, rank: Rank = None, all_threads: AllThreads = False
    ) -> StackList:
        """Dump all ranks of a live job and return their stacks. Equal stacks are one item.

        The dumps are the same as those of a verdict on demand.
        """
        evidence = (await _examine(tower, job, rank)).evidence
        if evidence is None:
            raise HTTPException(503, "no case could be made of the dumps: see the tower's log")
        # The case of a large job is decoded in a thread, so that reports are not delayed.
        return await asyncio.to_thread(
            list_examined_stacks, evidence, rank, all_threads=all_threads
        )

    return router


async def _examine(tower: Tower, job: str, rank: int | None = None) -> Examination:
    """Examine a job and return what was found.

    Raises HTTPException if the job or the rank is not known, or if it cannot be examined now.
    """
    try:
        found = await tower.examinations.examine(job, rank)
    except RankNotReportedError as error:
        raise HTTPException(404, f"{error} for job {job!r}") from None
    except ExaminationRefusedError as error:
        raise HTTPException(503, str(error)) from None
    if found is None:
        raise HTTPException(404, f"no live rank of a job {job!r} is reported")
    return found


OfStatus = Annotated[Status | None, Query(description="Only jobs with this status.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """Live jobs, by name."""

    items: list[JobSummary]


def job_routes(tower: Tower, links: AlertLinks = NO_LINKS) -> APIRouter:
    """Routes of one tower. Longer paths come first, because a job's name may contain slashes."""
    router = APIRouter(prefix=JOBS, tags=[openapi.JOBS])

    @router.get("")
    async def list_jobs(drills: WithDrills = False, status: OfStatus = None) -> JobList:
        """List the jobs that agents report."""
        return JobList(items=summarize_jobs(tower.moment(), drills, status))

    @router.get(
        "/{job:job}/verdict",
        response_model=VerdictView,
    )
    async def get_verdict(
        job: JobName, shape: Format = VerdictFormat.JSON
    ) -> VerdictView | Response:
        """Return which rank hung the job, where and why.

        This is the current verdict of a live job. For a job that no agent reports, it is the
        verdict of its latest incident.
        """
        return write_verdict(known_job(await job_verdict(tower, job), job), shape, links)

    @router.get("/{job:job}/configuration")
    async def get_configuration(job: JobName) -> ConfigurationView:
        """Return what the ranks and nodes of a live job are set up with, and in what they differ.

        Agents send the variables of a reviewed list only, and mask what may be a secret.
        """
        return known_job(view_configuration(tower.moment(), job), job)

    @router.get("/{job:job}/steps")
    async def get_steps(job: JobName) -> JobSteps:
        """Return the steps of a live job in the last 15 minutes and in the last 24 hours."""
        return known_job(view_steps(tower.moment(), job), job)

    @router.get("/{job:job}")
    async def get_job(job: JobName) -> JobView:
        """Return a live job with its ranks, nodes and verdict."""
        return known_job(view_job(tower.moment(), job), job)

    return router


Found = TypeVar("Found")


def known_job(found: Found | None, job: str) -> Found:
    """Return what was found of a job. Raises HTTPException 404 if that is nothing."""
    if found is None:
        detail = f"there is no job {job!r}: no agent reports it, and it has no incident"
        raise HTTPException(404, detail)
    return found
