"""All standings of a case together, and the ranks that wait where neither frame nor record says so.

Calls into C are invisible: `work.wait()`, `comm.Allreduce()` or a read of the loss leave only the
line of the user's own loop. When most ranks sit still at one such place and a few are elsewhere,
the many are presumed to wait for the few. With two ranks there is no majority, and no presumption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar, cast

from watchtower.core.case import Case
from watchtower.core.diagnosis.comm_threads import find_comm_threads
from watchtower.core.diagnosis.frames import FrameClass
from watchtower.core.diagnosis.scattered import find_scattered
from watchtower.core.diagnosis.stacktree import StackNode, merge_stacks
from watchtower.core.diagnosis.standing import Place, Standing, take_standing
from watchtower.core.diagnosis.threads import CommThreads, KnownStack, index_stacks
from watchtower.core.diagnosis.waiting.doubts import Suspicion, weigh_suspicion
from watchtower.core.diagnosis.waiting.graph import WaitGraph
from watchtower.core.diagnosis.waiting.placing import graph_of, place_by_records
from watchtower.core.diagnosis.waiting.records import Records, read_records
from watchtower.wire.stacks import Stack, make_stack

Found = TypeVar("Found")

HIDDEN_WAITS = frozenset(
    {
        FrameClass.USER,
        FrameClass.LOCK,
        FrameClass.THREAD,
        FrameClass.NETWORK,
        FrameClass.OPTIMIZER,
        FrameClass.BACKWARD,
        FrameClass.DEVICE,
        FrameClass.NONE,
    }
)
"""Classes whose frames may hide a collective; a data loader or a checkpoint does not."""

SOCKETS = frozenset({"network", "local"})
"""Kernel waits for the other end of a socket, on another node and on this one."""

MIN_CROWD_RANKS = 3
"""Fewer live ranks have no majority that means anything."""


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
    return _presume(standings, find_crowd(standings))


def find_crowd(standings: Standings) -> frozenset[int]:
    """Find the ranks, more than half of the live ones, that sit still at one place.

    Descends the merged stacks as long as one branch holds a majority and everyone is in it.
    """
    still = {
        item.rank: item.stack
        for item in standings.live
        if item.stack and item.frame_class in HIDDEN_WAITS and item.unchanged
    }
    others = {item.rank: item.stack for item in standings.live if item.stack}
    live = len(standings.live)
    if live < MIN_CROWD_RANKS or 2 * len(still) <= live:
        return frozenset()
    if scattered := find_scattered(standings.live):
        return scattered
    crowd = _join_ending(_most_crowded(others, live), others, live) & still.keys()
    if 2 * len(crowd) <= live:
        crowd = _most_crowded(_without_lines(others), live) & _blocked_in_sockets(standings, still)
    return crowd if 2 * len(crowd) > live else frozenset()


def _most_crowded(stacks: Mapping[int, Stack], live: int) -> frozenset[int]:
    node: StackNode | None = merge_stacks(stacks)
    while node is not None and len(node.ranks) == len(stacks):
        node = next((child for child in node.children if 2 * len(child.ranks) > live), None)
    return frozenset() if node is None else node.ranks


def _join_ending(crowd: frozenset[int], stacks: Mapping[int, Stack], live: int) -> frozenset[int]:
    """Let ranks that ended in one frame of the user's own count as one place, whoever called it.

    The stages of a pipeline send and receive from many lines by one function of their own. Where a
    branch of the stacks holds ranks in different frames, the one rank that is not in the frame of
    all the others is outside, though it may be in that branch; of more ranks nobody can tell.
    """
    if len({_ending_of(stacks[rank]) for rank in crowd}) < 2:
        return crowd
    endings: dict[object, set[int]] = {}
    for rank, stack in stacks.items():
        if stack.frames and not stack.frames[0].library:
            endings.setdefault(_ending_of(stack), set()).add(rank)
    most = frozenset(max(endings.values(), key=len, default=()))
    if 2 * len(most) <= live:
        return crowd
    return most if len(most) == live - 1 else crowd | most


def _ending_of(stack: Stack) -> tuple[tuple[str, str, int], ...]:
    return tuple((frame.file, frame.function, frame.line) for frame in stack.frames[:1])


def _without_lines(stacks: Mapping[int, Stack]) -> dict[int, Stack]:
    """Let calls from different lines of one function be one place.

    The hub of a star and its leaves exchange at different lines. What else a function does lies
    there too, so that this only counts for ranks that the kernel shows in a socket call.
    """
    return {
        rank: make_stack(tuple(replace(frame, line=0, loops=()) for frame in stack.frames))
        for rank, stack in stacks.items()
    }


def _blocked_in_sockets(standings: Standings, ranks: Iterable[int]) -> frozenset[int]:
    waits = {rank: standings.by_rank[rank].wait.wait_class for rank in ranks}
    return frozenset(rank for rank, wait_class in waits.items() if wait_class in SOCKETS)


def _presume(standings: Standings, crowd: frozenset[int]) -> Standings:
    by_rank = {
        rank: replace(item, place=Place.WAITING, presumed=True) if rank in crowd else item
        for rank, item in standings.by_rank.items()
    }
    return replace(standings, by_rank=by_rank, _found={})
