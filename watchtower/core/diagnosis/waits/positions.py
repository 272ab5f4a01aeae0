"""All ranks of a case in their positions, and who waits for whom, before anything is concluded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from watchtower.core.case import Case
from watchtower.core.diagnosis.position import Place, Position
from watchtower.core.diagnosis.waits.collective_logs import Records
from watchtower.core.diagnosis.waits.graph import WaitGraph
from watchtower.core.reading.threads import CommThreads, KnownStack
from watchtower.wire.report import lowest_step


@dataclass(frozen=True)
class Positions:
    """Every rank of the case, by rank. (No slots: the groups are computed once and kept.)"""

    case: Case
    by_rank: Mapping[int, Position]
    records: Records | None = None
    """Collective logs, where some rank gave any."""
    graph: WaitGraph | None = None
    """Who waits for whom by those logs."""
    comm_threads: CommThreads | None = None
    """Threads that make the collectives, where main threads only wait for them."""
    stacks: Mapping[str, KnownStack] = field(default_factory=dict, compare=False, repr=False)
    """Every stack of the case by digest: of other threads and of children, too."""

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
        """Ranks of which it is not known, never to be called innocent."""
        return self.at(Place.UNSEEN)

    @cached_property
    def step(self) -> int | None:
        """Lowest step that every rank with heartbeats has made; null before the first."""
        step = lowest_step(item.evidence.beat for item in self.by_rank.values())
        return None if step < 0 else step

    def waiting_without(self, ranks: Iterable[int]) -> tuple[Position, ...]:
        """Ranks that wait, leaving these out."""
        accused = set(ranks)
        return tuple(item for item in self.waiting if item.rank not in accused)
