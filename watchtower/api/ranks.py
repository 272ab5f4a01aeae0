"""Routes about every rank of a job or incident, and about what the evidence shows of them."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute

from watchtower.api import openapi
from watchtower.api.answers import IncidentId, JobName, find_known_id, text_of
from watchtower.api.jobs import JOBS
from watchtower.tower.stored_incidents import read_summary
from watchtower.tower.tower import Tower
from watchtower.views.case_summary import CaseSummary, RankGrid
from watchtower.views.graph_svg import draw_graph
from watchtower.views.rank import EvidenceView, RanksView, view_evidence, view_grid

BYTES, SVG = "application/octet-stream", "image/svg+xml"

POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""Of a picture that is opened by itself: it has a style, and nothing else that acts."""

NO_SUMMARY = "incident {incident!r} has no summary of its evidence: retention has deleted it"


def rank_routes(tower: Tower) -> list[BaseRoute]:
    """Routes of one tower. Longer paths come first, because a job's name may contain slashes."""
    return [*_job_routes(tower).routes, *_incident_routes(tower).routes]


def _job_routes(tower: Tower) -> APIRouter:
    router = APIRouter(prefix=JOBS, tags=[openapi.JOBS])

    def grid_of(job: str) -> RankGrid:
        grid = tower.grids.find(tower.moment(), job)
        if grid is None:
            raise HTTPException(404, f"there is no live job {job!r}: no agent reports it")
        return grid

    @router.get(
        "/{job:job}/ranks.bin",
        response_class=Response,
        responses=text_of(BYTES),
    )
    async def get_job_ranks(job: JobName) -> Response:
        """Return every rank of a live job in three bytes: state, steps behind, phase.

        `/ranks` describes the bytes. The ranks are as last reported, at most 2 s ago.
        """
        return Response(grid_of(job).cells, media_type=BYTES)

    @router.get("/{job:job}/ranks")
    async def describe_job_ranks(job: JobName) -> RanksView:
        """Return what the bytes of `/ranks.bin` mean, and the ranks of a live job in groups."""
        return view_grid(grid_of(job))

    return router


def _incident_routes(tower: Tower) -> APIRouter:
    router = APIRouter(prefix="/api/v1/incidents", tags=[openapi.INCIDENTS])

    async def summary_of(incident: str) -> CaseSummary:
        summary = await read_summary(tower, await find_known_id(tower, incident))
        if summary is None:
            raise HTTPException(404, NO_SUMMARY.format(incident=incident))
        return summary

    @router.get(
        "/{incident}/ranks.bin",
        response_class=Response,
        responses=text_of(BYTES),
    )
    async def get_incident_ranks(incident: IncidentId) -> Response:
        """Return every rank in three bytes, as the evidence of an incident shows it.

        `/ranks` describes the bytes.
        """
        return Response((await summary_of(incident)).ranks.cells, media_type=BYTES)

    @router.get("/{incident}/ranks")
    async def describe_incident_ranks(incident: IncidentId) -> RanksView:
        """Return what the bytes of `/ranks.bin` mean, and the ranks of an incident in groups."""
        return view_grid((await summary_of(incident)).ranks)

    @router.get(
        "/{incident}/evidence",
    )
    async def get_evidence(incident: IncidentId) -> EvidenceView:
        """Return which ranks wait for which, all stacks as a tree, and how the suspect differs."""
        return view_evidence(await summary_of(incident))

    @router.get(
        "/{incident}/graph.svg",
        response_class=Response,
        responses=text_of(SVG),
    )
    async def get_graph(incident: IncidentId) -> Response:
        """Return a picture of which ranks wait for which. Its description is the same in words."""
        picture = draw_graph((await summary_of(incident)).waits, is_file=True)
        headers = {"Content-Security-Policy": POLICY}
        return Response(picture, media_type=SVG, headers=headers)

    return router
