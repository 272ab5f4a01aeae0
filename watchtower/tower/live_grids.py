"""Every rank of a live job in three bytes, from its latest report."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from watchtower.fleet.fleet import Fleet
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.detector import Detector
from watchtower.jobs.generation import Generation
from watchtower.jobs.ranks import RankRecord
from watchtower.tower.clock import Clock
from watchtower.views.case_summary import RankGrid, RankState
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

    def __init__(
        self, fleet: Fleet, detector: Detector, clock: Clock, live: Mapping[str, Attempt]
    ) -> None:
        self._fleet, self._detector, self._clock, self._live = fleet, detector, clock, live
        self._kept: OrderedDict[str, tuple[float, Generation, RankGrid]] = OrderedDict()

    def find(self, name: str) -> RankGrid | None:
        """Return the grid of a job, at most `FRESH_S` old; None if the job is not live."""
        live, job = self._live.get(name), self._fleet.jobs.get(name)
        if live is None or job is None:
            return None
        gen, now = job.generation, self._clock.now()
        kept = self._kept.pop(name, None)
        if kept is None or kept[1] is not gen or now - kept[0] >= FRESH_S:
            kept = now, gen, self._make(live, gen, now)
        self._kept[name] = kept
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return kept[2]

    def _make(self, live: Attempt, gen: Generation, now: float) -> RankGrid:
        alive = list(gen.live())
        reporting = {id(r) for r in self._detector.find_reporting(alive, self._fleet.nodes, now)}
        diagnosis, states = live.watch.diagnosis, _States(self._detector, live, gen, now)
        suspects = set[int]()
        if diagnosis is not None and live.watch.status in ACCUSED:
            suspects = {suspect.rank for suspect in diagnosis.suspects}
        ranks: list[GridRank] = []
        for rank in sorted([*gen.ranks, *gen.missing_ranks()]):
            record = gen.ranks.get(rank)
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

    def __init__(self, detector: Detector, live: Attempt, gen: Generation, now: float) -> None:
        self._detector, self._pauses, self._gen, self._now = detector, live.pauses, gen, now
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
            limit_s = self._detector.deadline_s(self._gen, beat.phase, self._pauses)
            self._limits[beat.phase] = limit_s
        limit = self._limits[beat.phase]
        age_s = record.age_s(self._now, record.reporter.interval_s)
        return RankState.STEPPING if limit is None or age_s < limit else RankState.LATE
