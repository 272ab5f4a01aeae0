"""The picture of a case: every rank in its position, and what follows from all of them together.

It is the one argument of a rule. Deaths, splits and the odd rank are computed once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from watchtower.core.case import Case
from watchtower.core.diagnosis.deaths.death import Death, find_deaths
from watchtower.core.diagnosis.deaths.launcher import find_ended_from_outside
from watchtower.core.diagnosis.deaths.order import find_culprits
from watchtower.core.diagnosis.position import Place, Position, take_position
from watchtower.core.diagnosis.waits.collective_logs import read_records
from watchtower.core.diagnosis.waits.comm_threads import find_comm_threads
from watchtower.core.diagnosis.waits.gave_up import find_gave_up
from watchtower.core.diagnosis.waits.log_waits import graph_of, place_by_records
from watchtower.core.diagnosis.waits.majority import find_crowd
from watchtower.core.diagnosis.waits.messages import MissingSend, find_missing_sends
from watchtower.core.diagnosis.waits.mismatches import Split, find_split
from watchtower.core.diagnosis.waits.odd_rank import Alone, find_alone
from watchtower.core.diagnosis.waits.positions import Positions
from watchtower.core.diagnosis.waits.sinks import Suspicion, weigh_suspicion
from watchtower.core.reading.threads import index_stacks


class Picture(Positions):
    """All positions of a case and what follows from them."""

    @cached_property
    def sinks(self) -> tuple[Position, ...]:
        """Ranks elsewhere that the others may be waiting for: those to accuse.

        Of ranks with collective logs only those that others wait for: a rank that is elsewhere and
        holds up no other is no suspect. Without those that may as well wait for one of the rest.
        """
        return self._suspicion.chosen

    @cached_property
    def secondary(self) -> tuple[Position, ...]:
        """Ranks elsewhere that may wait for one of `sinks` in a call that nothing shows."""
        return self._suspicion.overshadowed

    @cached_property
    def uncertain(self) -> frozenset[int]:
        """Ranks elsewhere of which something speaks against that the others wait for them."""
        return self._suspicion.doubted

    @cached_property
    def _suspicion(self) -> Suspicion:
        elsewhere = self.at(Place.ELSEWHERE)
        if self.graph is not None and self.records is not None and self.graph.ends:
            known, sinks = self.records.of_rank, self.graph.sinks
            elsewhere = tuple(i for i in elsewhere if i.rank in sinks or i.rank not in known)
        return weigh_suspicion(elsewhere, self.by_rank, self.records, self.graph)

    @cached_property
    def deaths(self) -> tuple[Death, ...]:
        """Ranks that have ended, the earliest first."""
        return find_deaths(self.ended)

    @cached_property
    def first_hand(self) -> tuple[Death, ...]:
        """Deaths that explain the others."""
        return find_culprits(self, self.deaths, self.ended_from_outside, self.gave_up)

    @cached_property
    def ended_from_outside(self) -> tuple[Death, ...]:
        """Ranks that were ended on purpose, with most of the job and for no earlier death."""
        return find_ended_from_outside(self.deaths, len(self.by_rank), self.case.settle_s)

    @cached_property
    def is_cancelled(self) -> bool:
        """Whether the whole job was ended on purpose: no rank is left.

        Ranks that died of the broken connection, left with 0 or had to be killed do not count
        against it; any death that could have a reason of its own does, unless the signal came
        before it.
        """
        is_over = 0 < len(self.by_rank) == len(self.deaths)
        return is_over and bool(self.ended_from_outside)

    @cached_property
    def gave_up(self) -> tuple[Position, ...]:
        """Ranks that waited in this stall until they, or their launcher, gave up."""
        return find_gave_up(self)

    @cached_property
    def odd_rank(self) -> Alone | None:
        """The rank that alone differs from those in its cycle."""
        return find_alone(self)

    @cached_property
    def split(self) -> Split | None:
        """Ranks that are in another call than the rest of their group."""
        return find_split(self, self.odd_rank)

    @cached_property
    def missing_sends(self) -> tuple[MissingSend, ...]:
        """Messages that were never sent although their sender has gone on."""
        return find_missing_sends(self, self.odd_rank)


def take_picture(case: Case) -> Picture:
    """Read every rank; where no frame names a collective, presume that a majority waits."""
    stacks = index_stacks(case.stacks)
    by_rank = {evidence.rank: take_position(case, evidence, stacks) for evidence in case.ranks}
    comm_threads = find_comm_threads(by_rank.values(), stacks)
    if comm_threads:
        by_rank = {
            item.rank: take_position(case, item, stacks, comm_threads) for item in case.ranks
        }
    records = read_records(case)
    graph = graph_of(by_rank, records) if records else None
    if records and graph:
        by_rank = place_by_records(by_rank, records, graph)
    picture = Picture(case, by_rank, records, graph, comm_threads, stacks)
    if picture.waiting:
        return picture
    return _presume(picture, find_crowd(picture.live))


def _presume(picture: Picture, crowd: frozenset[int]) -> Picture:
    by_rank = {
        rank: replace(item, place=Place.CALL_UNKNOWN) if rank in crowd else item
        for rank, item in picture.by_rank.items()
    }
    return replace(picture, by_rank=by_rank)
