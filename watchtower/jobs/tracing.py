"""Of which ranks of an incident the series of 15 minutes are ordered.

Series of all ranks of a large job would be megabytes from thousands of nodes at one moment. A
suspect differs from any healthy rank, and three of them have a median.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from watchtower.jobs.attempt import Attempt
from watchtower.jobs.ranks import LaunchKey, RankRecord
from watchtower.wire.series import MAX_TRACED
from watchtower.wire.verdict import Verdict

MAX_SUSPECTS = 8
"""Suspects of one verdict that are traced, those named first. More are a node or a switch."""

PEERS = 3
"""Healthy peers: the least number of which one may be odd and the median is still usual."""

MAX_COMPARED = 256
"""Ranks of which the peers are chosen: those of some 32 nodes."""

AGAIN_S = 15.0
"""Seconds after which an order is given again. An agent answers within some seconds."""

MAX_TRIES = 3
"""Orders of one rank: lost replies are rare, and an agent that is in trouble may never answer."""


def choose_suspects(verdict: Verdict) -> tuple[int, ...]:
    """Return the ranks that a verdict names; if it names none, those of its best alternative."""
    named = tuple(suspect.rank for suspect in verdict.suspects)
    if not named and verdict.alternatives:
        named = verdict.alternatives[0].suspects
    return tuple(dict.fromkeys(named))[:MAX_SUSPECTS]


def choose_peers(attempt: Attempt, suspects: Collection[int], count: int = PEERS) -> list[int]:
    """Return healthy ranks, in ascending order.

    Nodes without a suspect come first, then other nodes than those chosen, then ranks with the same
    place on their node as a suspect: they use the same kind of GPU, and do the same work.
    """
    accused = [attempt.ranks[rank] for rank in suspects if rank in attempt.ranks]
    bad_nodes = {record.key.node for record in accused}
    places = {record.vitals.local_rank for record in accused}
    healthy = [record for record in attempt.live() if record.vitals.rank not in suspects]
    free = [record for record in healthy if record.key.node not in bad_nodes][:MAX_COMPARED]
    if len(free) < count:
        free = healthy[:MAX_COMPARED]
    chosen: list[RankRecord] = []
    while free and len(chosen) < count:
        used = {record.key.node for record in chosen}
        best = min(free, key=lambda record: _distance(record, bad_nodes, used, places))
        chosen.append(best)
        free.remove(best)
    return sorted(record.vitals.rank for record in chosen)


def _distance(
    record: RankRecord, bad_nodes: set[str], used: set[str], places: set[int | None]
) -> tuple[bool, bool, bool, int]:
    node = record.key.node
    other_place = record.vitals.local_rank not in places
    return node in bad_nodes, node in used, other_place, record.vitals.rank


@dataclass(slots=True)
class Tracing:
    """The series ordered and received for one incident. It decides which ones to order next."""

    incident: str = ""
    wanted: dict[int, int] = field(default_factory=dict)
    """Ranks to trace, and how often each was ordered."""
    suspects: tuple[int, ...] = ()
    received: set[int] = field(default_factory=set)
    _ordered_at: float = float("-inf")

    def begin(self, incident: str, suspects: Iterable[int], attempt: Attempt) -> None:
        """Trace these suspects of an incident, and peers if there are none yet.

        Ranks of earlier verdicts stay: their series are of the time of the hang.
        """
        if incident != self.incident:
            self.incident, self.wanted, self.received = incident, {}, set()
        self.suspects = tuple(suspects)
        known = bool(self.wanted)
        peers = [] if known else choose_peers(attempt, self.suspects)
        for rank in (*self.suspects, *peers):
            if len(self.wanted) < MAX_TRACED:
                self.wanted.setdefault(rank, 0)
        self._ordered_at = float("-inf")

    def resume(self, incident: str, suspects: Iterable[int]) -> None:
        """Continue with an incident of the tower's last run, whose series were ordered then."""
        self.incident, self.suspects = incident, tuple(suspects)
        self.wanted = dict.fromkeys(self.suspects, MAX_TRIES)

    def is_due(self, now: float) -> bool:
        """Return whether ranks must be ordered now."""
        return bool(self._missing()) and now - self._ordered_at >= AGAIN_S

    def take_due(self, attempt: Attempt, now: float) -> dict[LaunchKey, tuple[int, ...]]:
        """Return the ranks to order by launch, and count them as ordered.

        An order names all traced ranks of its launch, because its answer replaces the earlier one.
        It names one launch, because another job of the same name may have the same ranks there.
        """
        self._ordered_at = now
        launches = dict[LaunchKey, list[int]]()
        due = set(self._missing())
        for rank in self.wanted:
            if rank in attempt.ranks:
                launches.setdefault(attempt.ranks[rank].launch, []).append(rank)
        launches = {launch: ranks for launch, ranks in launches.items() if due & set(ranks)}
        for rank in due:
            self.wanted[rank] += 1
        return {launch: tuple(sorted(ranks)) for launch, ranks in launches.items()}

    def take(self, ranks: Iterable[int]) -> None:
        """Note ranks whose series were stored."""
        self.received.update(ranks)

    def _missing(self) -> list[int]:
        return [
            rank
            for rank, tries in self.wanted.items()
            if tries < MAX_TRIES and rank not in self.received
        ]
