"""Routes about silences: jobs, nodes and users whose alerts do not fire for a while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, HTTPException, Path
from pydantic import Field

from watchtower.api import examples, openapi
from watchtower.api.parameters import PersonName, answer
from watchtower.tower.silences import SilenceView, Subject, view_silence
from watchtower.tower.tower import Tower
from watchtower.wire.bounds import MAX_SILENCE_S

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

    @router.get("", responses=answer(examples.SILENCES, "Silences in force"))
    async def list_silences() -> SilenceList:
        """List the jobs, nodes and users whose alerts are silenced now."""
        return SilenceList(items=[view_silence(silence) for silence in tower.silences.all()])

    @router.post("", responses=answer(examples.SILENCE, "The silence"))
    async def add_silence(asked: SilenceRequest) -> SilenceView:
        """Silence the alerts of a job, node or user for a while.

        Jobs are watched and diagnosed as before. The job, node or user need not be known yet. The
        silence replaces an earlier one of the same job, node or user.
        """
        named = Subject(job=asked.job, node=asked.node, user=asked.user)
        added = await tower.silences.add(named, asked.for_s, asked.reason, asked.by or "")
        return view_silence(added)

    @router.delete("/{silence}", responses=answer(examples.SILENCE, "The silence that ended"))
    async def remove_silence(silence: SilenceId) -> SilenceView:
        """End a silence: alerts of open incidents fire again."""
        removed = await tower.silences.remove(silence)
        if removed is None:
            raise HTTPException(404, f"there is no silence {silence!r}")
        return view_silence(removed)

    return router
