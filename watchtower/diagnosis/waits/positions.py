"""All ranks of a case in their positions, with the waits that the sources have shown so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias, TypeVar

from watchtower.diagnosis.position import Place, Position
from watchtower.diagnosis.waits.collective_logs import CollectiveLogs
from watchtower.diagnosis.waits.graph import WaitGraph
from watchtower.evidence.case import Case
from watchtower.evidence.threads import CommThreads, KnownStack
from watchtower.wire.report import lowest_step


@dataclass(frozen=True, slots=True)
class Edge:
    """Ranks that wait for others, and the source that shows it.

    The ranks that they wait for are in the graph, if a collective log names the call. Else they may
    wait for any rank that does not wait.
    """

    source: str
    """Its name in `SOURCES` of `sources.py`, shown to people: "collective log"."""
    ranks: tuple[int, ...]


Known = TypeVar("Known", bound="Positions")
"""The picture, as far as the sources have made it."""

Found: TypeAlias = tuple[Known, Iterable[int]]
"""The picture after a source, and the ranks that the source shows to wait, or to have waited."""


@dataclass(frozen=True)
class Positions:
    """Every rank of the case, by rank. (No slots: the groups are computed once and kept.)"""

    case: Case
    by_rank: Mapping[int, Position]
    collective_logs: CollectiveLogs | None = None
    """Null if no rank has any."""
    graph: WaitGraph | None = None
    """Which rank waits for which by those logs."""
    comm_threads: CommThreads | None = None
    """Threads that make the collectives, where main threads only wait for them."""
    stacks: Mapping[str, KnownStack] = field(default_factory=dict, compare=False, repr=False)
    """Every stack of the case by digest: of other threads and of children, too."""
    edges: tuple[Edge, ...] = ()
    """The edges of the sources. A later source may correct an earlier one: whether a rank waits
    is in its position."""

    def with_edge(self: Known, source: str, ranks: Iterable[int]) -> Known:
        """Return these with an edge of this source; the same ones if it shows no rank."""
        edge = Edge(source, tuple(ranks))
        return replace(self, edges=(*self.edges, edge)) if edge.ranks else self

    def at(self, *places: Place) -> tuple[Position, ...]:
        """Return the positions at these places, in ascending order of rank."""
        if len(places) == 1:
            return self._by_place.get(places[0], ())
        return tuple(item for item in self.by_rank.values() if item.place in places)

    @cached_property
    def _by_place(self) -> Mapping[Place, tuple[Position, ...]]:
        found: dict[Place, list[Position]] = {}
        for item in self.by_rank.values():
            found.setdefault(item.place, []).append(item)
        return {place: tuple(items) for place, items in found.items()}

    @cached_property
    def live(self) -> tuple[Position, ...]:
        """Ranks whose process is there."""
        return tuple(item for item in self.by_rank.values() if item.live)

    @cached_property
    def waiting(self) -> tuple[Position, ...]:
        """Ranks that wait for other ranks."""
        return tuple(item for item in self.by_rank.values() if item.waits)

    @cached_property
    def ended(self) -> tuple[Position, ...]:
        """Ranks whose process has ended."""
        return tuple(item for item in self.at(Place.ABSENT) if not item.is_missing)

    @cached_property
    def missing(self) -> tuple[Position, ...]:
        """Ranks of the world size that were never seen."""
        return tuple(item for item in self.at(Place.ABSENT) if item.is_missing)

    @cached_property
    def unseen(self) -> tuple[Position, ...]:
        """Ranks of which it is not known whether they wait. They are never innocent."""
        return self.at(Place.UNSEEN)

    @cached_property
    def step(self) -> int | None:
        """Lowest step that every rank with heartbeats has made; null before the first."""
        step = lowest_step(item.evidence.beat for item in self.by_rank.values())
        return None if step < 0 else step

    def waiting_without(self, ranks: Iterable[int]) -> tuple[Position, ...]:
        """Return the ranks that wait, without these."""
        accused = set(ranks)
        return tuple(item for item in self.waiting if item.rank not in accused)

    def shown_by(self, source: str) -> tuple[Position, ...]:
        """Return the ranks that a source shows to wait, or to have waited."""
        found = (edge.ranks for edge in self.edges if edge.source == source)
        return tuple(self.by_rank[rank] for ranks in found for rank in ranks)
