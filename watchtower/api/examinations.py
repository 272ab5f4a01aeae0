"""Routes that examine a live job now. They order dumps, so that they need an operator's token."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from starlette.responses import Response

from watchtower.alerts.labels import NO_LINKS, AlertLinks
from watchtower.api import examples, openapi
from watchtower.api.job_paths import JOBS
from watchtower.api.parameters import JobName, answer
from watchtower.api.rendering import Format, VerdictFormat, write_verdict
from watchtower.tower.examination import (
    Examination,
    ExaminationRefusedError,
    RankNotReportedError,
)
from watchtower.tower.owners import OwnedVerdict, find_owner
from watchtower.tower.stack_views import StackList, list_stacks
from watchtower.tower.tower import Tower
from watchtower.tower.views import VerdictView
from watchtower.wire.bounds import MAX_RANK

Rank = Annotated[int | None, Query(ge=0, le=MAX_RANK, description="Only the stacks of this rank.")]
AllThreads = Annotated[
    bool, Query(description="Whether all Python threads are listed, not only the main thread.")
]
Native = Annotated[
    bool,
    Query(
        description="Whether the native functions of `rank` are read, too. The agent stops the "
        "rank for some tenths of a second."
    ),
]


def examination_routes(tower: Tower, links: AlertLinks = NO_LINKS) -> APIRouter:
    """Routes of one tower. They come before other routes of jobs, whose paths match more."""
    router = APIRouter(prefix=JOBS, tags=[openapi.JOBS])

    @router.post(
        "/{job:job}/verdict",
        response_model=VerdictView,
        responses=answer(examples.VERDICT, "The verdict, in the format asked for", examples.TEXTS),
    )
    async def diagnose_now(
        job: JobName, shape: Format = VerdictFormat.JSON
    ) -> VerdictView | Response:
        """Dump all ranks of a live job and return a verdict, also if no rank is suspect.

        The agents dump every rank twice, which takes about two seconds. No incident opens and no
        alert is sent. Those who ask for the same job at the same time get the same answer.
        """
        verdict = (await _examine(tower, job)).verdict
        owned = OwnedVerdict(verdict=verdict, owner=find_owner(tower, job))
        return write_verdict(owned, shape, links)

    @router.post(
        "/{job:job}/stacks",
        responses=answer(examples.STACKS, "The stacks, merged over ranks"),
    )
    async def list_stacks_now(
        job: JobName, rank: Rank = None, all_threads: AllThreads = False, native: Native = False
    ) -> StackList:
        """Dump all ranks of a live job and return their stacks. Equal stacks are one item.

        The dumps are the same as those of a verdict on demand. With `native`, only `rank` is
        dumped, and once. A rank that runs Python is not stopped: the answer says so.
        """
        if native and rank is None:
            raise HTTPException(422, "`native` needs `rank`: it stops the rank for a moment")
        evidence = (await _examine(tower, job, rank, native=native)).evidence
        if evidence is None:
            raise HTTPException(503, "no case could be made of the dumps: see the tower's log")
        # The case of a large job is decoded in a thread, so that reports are not delayed.
        return await asyncio.to_thread(
            list_stacks, evidence, rank, all_threads=all_threads, native=native
        )

    return router


async def _examine(
    tower: Tower, job: str, rank: int | None = None, *, native: bool = False
) -> Examination:
    """Examine a job and return what was found.

    Raises HTTPException if the job or the rank is not known, or if it cannot be examined now.
    """
    try:
        found = await tower.examinations.examine(job, rank, native=native)
    except RankNotReportedError as error:
        raise HTTPException(404, f"{error} for job {job!r}") from None
    except ExaminationRefusedError as error:
        raise HTTPException(503, str(error)) from None
    if found is None:
        raise HTTPException(404, f"no live rank of a job {job!r} is reported")
    return found
