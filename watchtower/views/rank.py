"""Every rank of a job in three bytes, from its latest report, and the evidence about all ranks."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from watchtower.jobs.attempt import Attempt
from watchtower.jobs.keeper import Keeper
from watchtower.jobs.ranks import RankRecord
from watchtower.views.case_summary import (
    STATES,
    CaseSummary,
    Contrast,
    NodeRanks,
    RankGrid,
    RankGroup,
    RankState,
    StackTree,
    WaitBoxes,
)
from watchtower.views.moment import Moment
from watchtower.views.summary.grid import GridRank, build_grid
from watchtower.wire.verdict import Status

FRESH_S = 2.0
"""Seconds for which a grid is used again, for all open pages of a job. One of 16,384 ranks takes
50 ms on the event loop."""

MAX_KEPT = 32
"""Grids that are kept, the least recently used is dropped first. One of 16,384 ranks has 1 MB."""

ACCUSED = (Status.SUSPECT, Status.HUNG, Status.SLOW)
"""Statuses in which the ranks of the diagnosis are the suspects of now."""


class LiveGrids:
    """The grids of all live jobs. Not thread-safe: for one event loop."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, Attempt, RankGrid]] = OrderedDict()

    def find(self, moment: Moment, name: str) -> RankGrid | None:
        """Return the grid of a job, at most `FRESH_S` old; None if the job is not live."""
        job = moment.find(name)
        if job is None:
            return None
        attempt, now = job.attempt, moment.now
        kept = self._kept.pop(name, None)
        if kept is None or kept[1] is not attempt or now - kept[0] >= FRESH_S:
            kept = now, attempt, view_ranks(moment, job)
        self._kept[name] = kept
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return kept[2]


def view_ranks(moment: Moment, job: Keeper) -> RankGrid:
    """Return the grid of a live job."""
    attempt, watch = job.attempt, job.judged.watch
    alive = list(attempt.live())
    find_reporting = moment.detector.find_reporting
    reporting = {id(r) for r in find_reporting(alive, moment.nodes, moment.now)}
    diagnosis, states = watch.shown, _States(moment, job)
    suspects = set[int]()
    if diagnosis is not None and watch.status in ACCUSED:
        suspects = {suspect.rank for suspect in diagnosis.suspects}
    ranks: list[GridRank] = []
    for rank in sorted([*attempt.ranks, *attempt.missing_ranks()]):
        record = attempt.ranks.get(rank)
        if record is None:
            state = RankState.SUSPECT if rank in suspects else RankState.MISSING
            ranks.append(GridRank(rank, "", state, None, "", ""))
            continue
        state = states.find(record, is_reporting=id(record) in reporting)
        beat = record.vitals.beat
        ranks.append(
            GridRank(
                rank,
                record.key.node,
                RankState.SUSPECT if rank in suspects else state,
                beat.step if beat and beat.step >= 0 else None,
                beat.phase if beat else "",
                "",
            )
        )
    return build_grid(ranks)


class _States:
    """The states of the ranks of one attempt now."""

    def __init__(self, moment: Moment, job: Keeper) -> None:
        self._moment, self._gen, self._pauses = moment, job.attempt, job.pauses
        self._limits: dict[str, float | None] = {}
        """By phase, the seconds without a step after which a rank is late."""

    def find(self, record: RankRecord, *, is_reporting: bool) -> RankState:
        if not record.is_live:
            return RankState.ENDED
        if not is_reporting:
            return RankState.UNSEEN
        beat = record.vitals.beat
        if beat is None or beat.step < 0:
            return RankState.NO_STEPS
        if beat.phase not in self._limits:
            limit_s = self._moment.detector.deadline_s(self._gen, beat.phase, self._pauses)
            self._limits[beat.phase] = limit_s
        limit = self._limits[beat.phase]
        age_s = record.age_s(self._moment.now, record.reporter.interval_s)
        return RankState.STEPPING if limit is None or age_s < limit else RankState.LATE


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
