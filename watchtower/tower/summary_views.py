"""Summaries of cases, as the API returns them."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.diagnoser.summaries import read_summary
from watchtower.tower.stored_incidents import read_summary as read_stored_summary
from watchtower.tower.tower import Tower
from watchtower.views.case_summary import (
    STATES,
    CaseSummary,
    Contrast,
    NodeRanks,
    RankGrid,
    RankGroup,
    StackTree,
    WaitBoxes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksView:
    """The meaning of the bytes of a grid of ranks, and the same ranks in groups."""

    count: int
    """Number of ranks in the grid."""
    node_ranks: list[NodeRanks]
    """Nodes in the order of the grid, each with its ranks in ascending order."""
    states: list[str]
    """Names of the states. The first byte of a rank is an index into this list."""
    step: int | None
    """The highest step of a rank. The second byte is the number of steps behind it: 254 means 254
    or more, 255 that the step of the rank is not known. Null if no step is known."""
    phases: list[str]
    """Names of the phases; the first one is "", plain training. The third byte is an index into
    this list."""
    groups: list[RankGroup]
    """Ranks in the same state, at the same step and place: the suspects first, then the smallest
    groups, at most 20."""
    groups_left_out: int
    """Groups that are not in the list, because it is full."""
    ranks_left_out: int
    """Ranks that are not in the grid, because the job has too many. The groups contain them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceView:
    """The summary of the evidence of an incident, in bounded size."""

    waits: WaitBoxes
    """Which ranks wait for which: boxes of ranks, and arrows between them."""
    stack_tree: StackTree
    """The main-thread stacks of all ranks, merged from the outermost frame on."""
    contrast: Contrast | None
    """The first suspect against the other ranks; null without a suspect."""


def view_grid(grid: RankGrid) -> RanksView:
    """Return the description of a grid."""
    return RanksView(
        count=grid.count,
        node_ranks=list(grid.nodes),
        states=[state.value for state in STATES],
        step=grid.step,
        phases=list(grid.phases),
        groups=list(grid.groups),
        groups_left_out=grid.groups_left_out,
        ranks_left_out=grid.ranks_left_out,
    )


def view_evidence(summary: CaseSummary) -> EvidenceView:
    """Return what the evidence shows, without the grid of ranks."""
    return EvidenceView(waits=summary.waits, stack_tree=summary.stacks, contrast=summary.contrast)


async def find_job_summary(tower: Tower, name: str) -> CaseSummary | None:
    """Return the summary of the current diagnosis of a live job; None without one.

    After a restart of the tower, it is that of the open incident.
    """
    live = tower.live.get(name)
    if live is None:
        return None
    if live.diagnoses.summary is not None:
        return read_summary(live.diagnoses.summary)
    incident = live.current_incident
    return await read_stored_summary(tower, incident.id) if incident is not None else None
