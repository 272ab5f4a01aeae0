"""The parts of a page that show evidence: waits, differences of the suspect, stacks, every rank.

All values come from the summary of the case. If retention has deleted it, the page leaves these
parts out. A script draws the grid of ranks. The page contains the
addresses of its bytes and of their description, with the version of both: the script asks for them
again when a version changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count

from watchtower.tower.stored_incidents import find_job_summary, read_summary
from watchtower.tower.tower import Tower
from watchtower.ui.templates import quote_segment
from watchtower.ui.words import cut_set, name_frame
from watchtower.views.case_summary import (
    CELL_BYTES,
    STATE_WORDS,
    STATES,
    CaseSummary,
    Contrast,
    RankGrid,
    RankGroup,
    StackBranch,
    StackTree,
    WaitBoxes,
)
from watchtower.views.graph_svg import WaitLine, list_waits
from watchtower.views.incident import IncidentOverview
from watchtower.views.job import JobOverview
from watchtower.wire.stacks import Frame
from watchtower.wire.verdict import Status
from watchtower.writing.text import clean, count_ranks, format_count, join_words


async def _find_summary(
    tower: Tower, overview: IncidentOverview | JobOverview
) -> CaseSummary | None:
    """Return the summary of an incident, or of a job that is suspect or slow without one."""
    if isinstance(overview, IncidentOverview):
        return await read_summary(tower, overview.incident.id)
    job = overview.summary
    if job.status not in (Status.SUSPECT, Status.SLOW) or job.incident is not None:
        return None
    return await find_job_summary(tower, job.job)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphShown:
    """Which rank waits for which."""

    waits: WaitBoxes
    """For the picture."""
    lines: list[WaitLine]
    """The same as a list, for narrow screens: the end of the waiting first."""


async def collect_graph(
    tower: Tower, overview: IncidentOverview | JobOverview
) -> GraphShown | None:
    """Return the graph of waits."""
    summary = await _find_summary(tower, overview)
    return show_graph(summary) if summary else None


def show_graph(summary: CaseSummary) -> GraphShown:
    """Return the graph, for a picture and in words."""
    return GraphShown(waits=summary.waits, lines=list_waits(summary.waits))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastShown:
    """The suspect against the other ranks."""

    contrast: Contrast
    others: int
    """Number of all other ranks. If it is larger than `peer_count`, these are a sample."""


async def collect_contrast(
    tower: Tower, overview: IncidentOverview | JobOverview
) -> ContrastShown | None:
    """Return the differences of the first suspect."""
    summary = await _find_summary(tower, overview)
    return show_contrast(summary) if summary else None


def show_contrast(summary: CaseSummary) -> ContrastShown | None:
    """Return the differences of the first suspect; None without a suspect."""
    contrast = summary.contrast
    if contrast is None:
        return None
    return ContrastShown(
        contrast=contrast, others=max(summary.ranks.count - 1, contrast.peer_count)
    )


SHOWN_FRAMES = 10
"""Frames of one branch in its line. Of more, the outermost and the innermost ones are shown."""

OUTERMOST = 3
"""Of these, the outermost frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchShown:
    """One line of the tree, and the branches below it."""

    number: int
    """Its place among all branches, from 0: what a bar of the chart links to."""
    count: str
    """"511 ranks"."""
    share: float
    """Of the ranks with a stack, 0 to 1."""
    ranks: str
    first: list[Frame]
    hidden: int
    """Frames between `first` and `last` that are not shown."""
    last: list[Frame]
    is_suspect: bool
    ending: str
    """"3 of them are here": ranks whose innermost frame this is, if others go on; else empty."""
    branches: list[BranchShown]


CHART_WIDTH = 1000
ROW = 18
"""Units of the picture from one frame to the next."""

MAX_ROWS = 30
LEAST_WIDTH = 3.0
"""A narrower bar would not be seen."""

LETTER = 6.4
"""Units of one letter in a bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackBar:
    """One frame in the chart: as wide as its share of the ranks, as low as its depth."""

    x: float
    y: int
    width: float
    text: str
    """As much of the frame as fits."""
    title: str
    branch: int
    """The number of its branch."""
    kind: str
    """"own", "library"."""
    is_suspect: bool
    """Not of frames that the suspect shares with ranks of another branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksShown:
    """The merged stacks."""

    about: str
    """"512 ranks, 2 different stacks"."""
    bars: list[StackBar]
    """The chart, the outermost frames first. Empty if all ranks have one stack."""
    height: int
    """Of the chart, in units."""
    branches: list[BranchShown]
    stacks_left_out: int
    ranks_left_out: int


async def collect_stacks(
    tower: Tower, overview: IncidentOverview | JobOverview
) -> StacksShown | None:
    """Return the tree of stacks."""
    summary = await _find_summary(tower, overview)
    return show_stacks(summary.stacks) if summary else None


def show_stacks(tree: StackTree) -> StacksShown | None:
    """Return the lines of a tree; None if no rank has a stack."""
    if not tree.rank_count:
        return None
    different = _count_endings(tree.branches) + tree.stacks_left_out
    stacks = format_count(different, "different stack")
    numbers = count()
    branches = [_show_branch(tree, branch, numbers) for branch in tree.branches]
    bars = list(_draw_bars(branches)) if different > 1 else []
    return StacksShown(
        about=f"{count_ranks(tree.rank_count)}, {stacks}",
        bars=bars,
        height=max((bar.y + ROW for bar in bars), default=0),
        branches=branches,
        stacks_left_out=tree.stacks_left_out,
        ranks_left_out=tree.ranks_left_out,
    )


def _count_endings(branches: Sequence[StackBranch]) -> int:
    return sum(bool(each.ending.count) + _count_endings(each.branches) for each in branches)


def _show_branch(tree: StackTree, branch: StackBranch, numbers: Iterator[int]) -> BranchShown:
    frames = [tree.frames[number] for number in branch.frame_numbers]
    is_long = len(frames) > SHOWN_FRAMES
    ending = branch.ending.count if branch.branches else 0
    return BranchShown(
        number=next(numbers),
        count=count_ranks(branch.rank_set.count),
        share=branch.rank_set.count / tree.rank_count,
        ranks=cut_set(branch.rank_set),
        first=frames[:OUTERMOST] if is_long else frames,
        hidden=len(frames) - SHOWN_FRAMES if is_long else 0,
        last=frames[OUTERMOST - SHOWN_FRAMES :] if is_long else [],
        is_suspect=branch.has_suspect,
        ending=f"{count_ranks(ending)} of them end here" if ending else "",
        branches=[_show_branch(tree, each, numbers) for each in branch.branches],
    )


def _draw_bars(branches: Sequence[BranchShown], x: float = 0.0, row: int = 0) -> Iterator[StackBar]:
    """Yield the bars of branches beside each other, from `x` and the row on."""
    for branch in branches:
        width = branch.share * CHART_WIDTH
        if width >= LEAST_WIDTH:
            hidden = [f"({branch.hidden} more frames)"] if branch.hidden else []
            whole: list[Frame | str] = [*branch.first, *hidden, *branch.last]
            frames = whole[: MAX_ROWS - row]
            for depth, frame in enumerate(frames, row):
                yield _draw_bar(branch, frame, x, depth)
            yield from _draw_bars(branch.branches, x, row + len(frames))
        x += width


def _draw_bar(branch: BranchShown, frame: Frame | str, x: float, row: int) -> StackBar:
    text = name_frame(frame) if isinstance(frame, Frame) else frame
    width = branch.share * CHART_WIDTH
    return StackBar(
        x=round(x, 1),
        y=row * ROW,
        width=round(width - 1, 1),
        text=clean(text, max(1, int((width - 8) / LETTER))) if width > 8 * LETTER else "",
        title=f"{branch.count}: {text}",
        branch=branch.number,
        kind="own" if isinstance(frame, Frame) and not frame.library else "library",
        is_suspect=branch.is_suspect and not any(each.is_suspect for each in branch.branches),
    )


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
    groups: tuple[RankGroup, ...]
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
    grid = tower.grids.find(tower.moment(), job)
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
        groups=grid.groups,
        has_lags=len({group.lag for group in grid.groups}) > 1,
        has_phases=any(group.phase for group in grid.groups),
        has_places=any(group.place for group in grid.groups),
        groups_left_out=grid.groups_left_out,
        ranks_left_out=grid.ranks_left_out,
    )


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()
