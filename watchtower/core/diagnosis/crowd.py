"""All standings of a case together, and the ranks that wait where no frame says so.

Calls into C are invisible: `work.wait()`, `comm.Allreduce()` or a read of the loss leave only the
line of the user's own loop. When most ranks sit still at one such place and a few are elsewhere,
the many are presumed to wait for the few. With two ranks there is no majority, and no presumption.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from watchtower.core.case import Case
from watchtower.core.diagnosis.frames import FrameClass
from watchtower.core.diagnosis.stacktree import StackNode, merge_stacks
from watchtower.core.diagnosis.standing import Place, Standing, index_stacks, take_standing

HIDDEN_WAITS = frozenset(
    {
        FrameClass.USER,
        FrameClass.LOCK,
        FrameClass.NETWORK,
        FrameClass.OPTIMIZER,
        FrameClass.BACKWARD,
        FrameClass.DEVICE,
        FrameClass.NONE,
    }
)
"""Classes whose frames may hide a collective; a data loader or a checkpoint does not."""

MIN_CROWD_RANKS = 3
"""Fewer live ranks have no majority that means anything."""


@dataclass(frozen=True)
class Standings:
    """Every rank of the case, by rank. (No slots: the groups are computed once and kept.)"""

    by_rank: dict[int, Standing]

    def at(self, *places: Place) -> tuple[Standing, ...]:
        """Give the standings at these places, in ascending order of rank."""
        return tuple(item for item in self.by_rank.values() if item.place in places)

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
        """Ranks that answered and are not inside a collective."""
        return self.at(Place.BEHIND)

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
    standings = Standings(
        {evidence.rank: take_standing(case, evidence, stacks) for evidence in case.ranks}
    )
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
    node: StackNode | None = merge_stacks(others)
    while node is not None and len(node.ranks) == len(others):
        node = _majority_child(node, live)
    crowd = frozenset() if node is None else node.ranks & still.keys()
    return crowd if 2 * len(crowd) > live else frozenset()


def _majority_child(node: StackNode, live: int) -> StackNode | None:
    return next((child for child in node.children if 2 * len(child.ranks) > live), None)


def _presume(standings: Standings, crowd: frozenset[int]) -> Standings:
    return Standings(
        {
            rank: replace(item, place=Place.WAITING, presumed=True) if rank in crowd else item
            for rank, item in standings.by_rank.items()
        }
    )
