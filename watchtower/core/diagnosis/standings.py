"""All standings of a case together: who waits, who is behind, who is not known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar, cast

from watchtower.core.case import Case
from watchtower.core.diagnosis.comm_threads import find_comm_threads
from watchtower.core.diagnosis.crowd import find_crowd
from watchtower.core.diagnosis.standing import Place, Standing, take_standing
from watchtower.core.diagnosis.waiting.doubts import Suspicion, weigh_suspicion
from watchtower.core.diagnosis.waiting.graph import WaitGraph
from watchtower.core.diagnosis.waiting.placing import graph_of, place_by_records
from watchtower.core.diagnosis.waiting.records import Records, read_records
from watchtower.core.reading.threads import CommThreads, KnownStack, index_stacks
from watchtower.wire.report import lowest_step

Found = TypeVar("Found")


@dataclass(frozen=True)
class Standings:
    """Every rank of the case, by rank. (No slots: the groups are computed once and kept.)"""

    by_rank: dict[int, Standing]
    records: Records | None = None
    """Collective records, where some rank gave any."""
    graph: WaitGraph | None = None
    """Who waits for whom by those records."""
    comm_threads: CommThreads | None = None
    """Threads that make the collectives, where main threads only wait for them."""
    stacks: Mapping[str, KnownStack] = field(default_factory=dict, compare=False, repr=False)
    """Every stack of the case by digest: of other threads and of children, too."""
    _found: dict[object, object] = field(default_factory=dict, compare=False, repr=False)

    def once(self, find: Callable[[Standings], Found]) -> Found:
        """Give what `find` makes of these standings; it is asked only the first time."""
        if find not in self._found:
            self._found[find] = find(self)
        return cast(Found, self._found[find])

    def at(self, *places: Place) -> tuple[Standing, ...]:
        """Give the standings at these places, in ascending order of rank."""
        if len(places) == 1:
            return self._by_place.get(places[0], ())
        return tuple(item for item in self.by_rank.values() if item.place in places)

    @cached_property
    def _by_place(self) -> dict[Place, tuple[Standing, ...]]:
        found: dict[Place, list[Standing]] = {}
        for item in self.by_rank.values():
            found.setdefault(item.place, []).append(item)
        return {place: tuple(items) for place, items in found.items()}

    @cached_property
    def live(self) -> tuple[Standing, ...]:
        """Ranks whose process is there."""
        return tuple(item for item in self.by_rank.values() if item.live)

    @cached_property
    def waiting(self) -> tuple[Standing, ...]:
        """Ranks that wait for other ranks."""
        return self.at(Place.WAITING)

    @cached_property
    def behind(self) -> tuple[Standing, ...]:
        """Ranks that answered and are not inside a collective.

        Of ranks with records only those that others wait for: who is somewhere else and keeps
        nobody is no suspect. Without those that may as well wait for one of the rest.
        """
        return self._suspicion.chosen

    @cached_property
    def overshadowed(self) -> tuple[Standing, ...]:
        """Ranks behind that may wait for one of `behind` in a call that nothing shows."""
        return self._suspicion.overshadowed

    @cached_property
    def doubted(self) -> frozenset[int]:
        """Ranks behind of which something speaks against that the others wait for them."""
        return self._suspicion.doubted

    @cached_property
    def _suspicion(self) -> Suspicion:
        behind = self.at(Place.BEHIND)
        if self.graph is not None and self.records is not None and self.graph.ends:
            known, sinks = self.records.of_rank, self.graph.sinks
            behind = tuple(i for i in behind if i.rank in sinks or i.rank not in known)
        return weigh_suspicion(behind, self.by_rank, self.records, self.graph)

    @cached_property
    def unknown(self) -> tuple[Standing, ...]:
        """Ranks of which it is not known, never to be called innocent."""
        return self.at(Place.UNKNOWN)

    @cached_property
    def step(self) -> int | None:
        """Lowest step that every rank with heartbeats has made; null before the first."""
        step = lowest_step(item.evidence.beat for item in self.by_rank.values())
        return None if step < 0 else step

    def waiting_without(self, ranks: Iterable[int]) -> tuple[Standing, ...]:
        """Ranks that wait, leaving these out."""
        accused = set(ranks)
        return tuple(item for item in self.waiting if item.rank not in accused)


def take_standings(case: Case) -> Standings:
    """Read every rank, then presume a crowd where no frame names a collective."""
    stacks = index_stacks(case.stacks)
    by_rank = {evidence.rank: take_standing(case, evidence, stacks) for evidence in case.ranks}
    comm_threads = find_comm_threads(by_rank.values(), stacks)
    if comm_threads:
        by_rank = {
            item.rank: take_standing(case, item, stacks, comm_threads) for item in case.ranks
        }
    records = read_records(case)
    graph = graph_of(by_rank, records) if records else None
    if records and graph:
        by_rank = place_by_records(by_rank, records, graph)
    standings = Standings(by_rank, records, graph, comm_threads, stacks)
    if standings.waiting:
        return standings
    return _presume(standings, find_crowd(standings.live))


def _presume(standings: Standings, crowd: frozenset[int]) -> Standings:
    by_rank = {
        rank: replace(item, place=Place.WAITING, presumed=True) if rank in crowd else item
        for rank, item in standings.by_rank.items()
    }
    return replace(standings, by_rank=by_rank, _found={})
