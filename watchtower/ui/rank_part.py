"""The part of a page with every rank: a grid that a script draws, and a table of groups.

The page contains the addresses of the bytes and of their description, with the version of both: the
script asks for them again when a version changes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b

from watchtower.tower.incident_overviews import IncidentOverview
from watchtower.tower.job_overviews import JobOverview
from watchtower.tower.stored_incidents import read_summary
from watchtower.tower.tower import Tower
from watchtower.ui.case_parts import cut_set
from watchtower.ui.environment import quote_segment
from watchtower.views.case_summary import CELL_BYTES, STATE_WORDS, STATES, RankGrid, RankGroup
from watchtower.writing.text import count_ranks, format_count, join_words


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShown:
    """One row of the table."""

    ranks: str
    count: int
    state: str
    tone: str
    """The class of its colour: the name of the state."""
    lag: str
    phase: str
    place: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksShown:
    """All ranks."""

    path: str
    """Address of the description, relative to the root; the bytes are at `path` + ".bin"."""
    about: str
    """"512 ranks on 64 nodes: 1 suspect, 511 waiting"."""
    cells: str
    """Version of the bytes."""
    description: str
    """Version of the description of the bytes."""
    groups: list[GroupShown]
    has_lags: bool
    """Whether the groups differ in their steps."""
    has_phases: bool
    has_places: bool
    groups_left_out: int
    ranks_left_out: int


async def collect_incident_ranks(tower: Tower, overview: IncidentOverview) -> RanksShown | None:
    """Return all ranks as the evidence of an incident shows them."""
    summary = await read_summary(tower, overview.incident.id)
    return show_ranks(f"incidents/{overview.incident.id}", summary.ranks) if summary else None


async def collect_job_ranks(tower: Tower, overview: JobOverview) -> RanksShown | None:
    """Return all ranks of a live job as they were last reported."""
    job = overview.summary.job
    grid = tower.grids.find(job)
    return show_ranks(f"jobs/{quote_segment(job)}", grid) if grid else None


def show_ranks(path: str, grid: RankGrid) -> RanksShown | None:
    """Return what a page shows of a grid; None if it has no rank."""
    if not grid.count:
        return None
    states = Counter(grid.cells[::CELL_BYTES])
    numbers = [f"{states[n]} {STATE_WORDS[state]}" for n, state in enumerate(STATES) if states[n]]
    nodes = format_count(sum(bool(node.node) for node in grid.nodes), "node")
    described = (grid.nodes, grid.phases, grid.step if grid.step is None else 0)
    return RanksShown(
        path=f"api/v1/{path}/ranks",
        about=f"{count_ranks(grid.count)} on {nodes}: {join_words(numbers)}",
        cells=_digest(grid.cells),
        description=_digest(repr(described).encode()),
        groups=[_show_group(group) for group in grid.groups],
        has_lags=len({group.lag for group in grid.groups}) > 1,
        has_phases=any(group.phase for group in grid.groups),
        has_places=any(group.place for group in grid.groups),
        groups_left_out=grid.groups_left_out,
        ranks_left_out=grid.ranks_left_out,
    )


def _show_group(group: RankGroup) -> GroupShown:
    lag = "newest step"
    if group.lag != 0:
        lag = "not known" if group.lag is None else f"{format_count(group.lag, 'step')} behind"
    return GroupShown(
        ranks=cut_set(group.rank_set),
        count=group.rank_set.count,
        state=STATE_WORDS[group.state],
        tone=group.state.value,
        lag=lag,
        phase=group.phase,
        place=group.place,
        node=group.node,
    )


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()
