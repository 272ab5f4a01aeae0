"""The wait-for graph: who waits for whom, through which group, and where the waiting ends.

Nodes are ranks and wait points (collective `number` of a group, the n-th message from one rank to
another). A rank points to the wait points it is blocked in; a wait point to the ranks that have not
come to it. Everybody who waits leads, over any number of groups, to an end: a component of the
graph that points nowhere else. An end is a rank that does not wait (it keeps all of them waiting),
a wait point that everybody has reached (nobody keeps them), or a cycle.

Time and memory are linear in ranks, groups and edges; nothing here recurses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from watchtower.core.diagnosis.waiting.components import find_components
from watchtower.core.diagnosis.waiting.records import (
    Entered,
    Group,
    Records,
    find_open_call,
    has_entered,
    record_of,
)


class PointKind(Enum):
    """What a wait point is about."""

    COLLECTIVE = "collective"
    RECEIVE = "receive"
    """A receiver waits for the sender's message."""
    SEND = "send"
    """A sender waits for its receiver to take the message."""


@dataclass(frozen=True, slots=True)
class WaitPoint:
    """Something that ranks are blocked in, and the ranks that have not come to it."""

    kind: PointKind
    number: int
    operation: str
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    """Ranks that are known not to have entered."""
    unknown: tuple[int, ...]
    """Ranks of which it is not known."""
    group: Group | None = None
    """Null for messages between two ranks."""
    certain: bool = True
    """Those who wait are known to have entered, not only to have called."""

    @property
    def held_up_by(self) -> tuple[int, ...]:
        """Ranks it waits for: those known to be missing, else those of which nothing is known."""
        return self.missing or self.unknown


class EndKind(Enum):
    """What the waiting ends in."""

    RANK = "rank"
    """A rank that waits for nobody."""
    POINT = "point"
    """A wait point that all its ranks have reached."""
    CYCLE = "cycle"
    """Ranks that wait for each other."""


@dataclass(frozen=True, slots=True)
class End:
    """Where waiting ends."""

    kind: EndKind
    ranks: tuple[int, ...]
    """The rank, the ranks of the cycle, or those at the wait point."""
    points: tuple[WaitPoint, ...]
    """Wait points inside: of a cycle those it goes through, of a rank none."""
    awaited_by: int
    """How many other ranks lead here."""
    certain: bool
    """Some wait point that leads here knows for sure that the ranks have not come."""


@dataclass(frozen=True)
class WaitGraph:
    """The graph, and its ends, the one most ranks lead to first. (No slots: see `Standings`.)"""

    points: tuple[WaitPoint, ...]
    blocked_in: Mapping[int, tuple[int, ...]]
    """By rank, the indices of the points it is blocked in."""
    ends: tuple[End, ...] = field(default=())

    @cached_property
    def sinks(self) -> frozenset[int]:
        """Ranks that keep others waiting and wait for nobody."""
        return frozenset(
            rank for end in self.ends if end.kind is EndKind.RANK for rank in end.ranks
        )

    def path_to(self, end: End) -> tuple[tuple[int, WaitPoint], ...]:
        """Give the longest of the shortest ways to an end: each rank and where it waits."""
        into = self._points_by_missing
        following: dict[int, tuple[int, WaitPoint]] = {}
        seen = set(end.ranks)
        queue = deque(end.ranks)
        last = end.ranks[0] if end.ranks else -1
        while queue:
            last = queue.popleft()
            for index in into.get(last, ()):
                for rank in self.points[index].waiting:
                    if rank not in seen:
                        seen.add(rank)
                        following[rank] = (last, self.points[index])
                        queue.append(rank)
        path = []
        while last in following:
            following_rank, point = following[last]
            path.append((last, point))
            last = following_rank
        return tuple(path)

    @cached_property
    def _points_by_missing(self) -> Mapping[int, list[int]]:
        into: dict[int, list[int]] = {}
        for index, point in enumerate(self.points):
            for rank in point.held_up_by:
                into.setdefault(rank, []).append(index)
        return into


def build_wait_graph(
    records: Records, elsewhere: Collection[int], absent: Collection[int]
) -> WaitGraph:
    """Build the graph.

    `elsewhere`: ranks whose stack shows that they are not in any call that waits, so that a call of
    theirs still under way in the background does not block them. `absent`: ranks that cannot enter
    anything any more (dead, stopped, never started).
    """
    absent = frozenset(absent)
    free = absent.union(elsewhere)
    points = [
        *_collective_points(records, free, absent),
        *_transfer_points(records, free, absent),
    ]
    blocked_in: dict[int, list[int]] = {}
    for index, point in enumerate(points):
        for rank in point.waiting:
            blocked_in.setdefault(rank, []).append(index)
    graph = WaitGraph(
        points=tuple(points),
        blocked_in={rank: tuple(indices) for rank, indices in blocked_in.items()},
    )
    return WaitGraph(points=graph.points, blocked_in=graph.blocked_in, ends=_find_ends(graph))


def _collective_points(
    records: Records, free: frozenset[int], absent: frozenset[int]
) -> Iterator[WaitPoint]:
    for name, by_log in records.in_group.items():
        group = records.groups[name]
        opened: dict[int, list[str]] = {}
        for digest in by_log:
            number = find_open_call(records.logs[digest])
            if number is not None:
                opened.setdefault(number, []).append(digest)
        silent: tuple[int, ...] | None = None
        for number, digests in sorted(opened.items()):
            waiting = [r for digest in digests for r in by_log[digest] if r not in free]
            if not waiting:
                continue
            if silent is None:
                heard = {rank for ranks in by_log.values() for rank in ranks}
                silent = tuple(rank for rank in group.members if rank not in heard)
            yield _collective_point(records, group, number, waiting, silent, absent)


def _collective_point(
    records: Records,
    group: Group,
    number: int,
    waiting: Sequence[int],
    silent: Sequence[int],
    absent: frozenset[int],
) -> WaitPoint:
    missing: list[int] = []
    unknown: list[int] = []
    there = frozenset(waiting)
    certain, operation = True, ""
    for digest, ranks in records.in_group[group.id].items():
        log = records.logs[digest]
        entered = has_entered(log, number)
        if ranks[0] in there or there.intersection(ranks):
            operation = operation or record_of(log, number).operation
            certain = certain and entered is Entered.YES
        if entered is Entered.NO:
            missing += ranks
        elif entered is Entered.UNKNOWN:
            unknown += [rank for rank in ranks if rank not in there]
    for rank in silent:
        (missing if rank in absent else unknown).append(rank)
    return WaitPoint(
        kind=PointKind.COLLECTIVE,
        number=number,
        operation=operation,
        waiting=tuple(sorted(waiting)),
        missing=tuple(sorted(missing)),
        unknown=tuple(sorted(unknown)),
        group=group,
        certain=certain,
    )


def _transfer_points(
    records: Records, free: frozenset[int], absent: frozenset[int]
) -> Iterator[WaitPoint]:
    for rank, rows in records.transfers.items():
        if rank in free:
            continue
        for row in rows:
            if row.peer < 0:
                continue
            theirs = records.transfers_with(row.peer, rank)
            heard = row.peer in records.transfers
            if row.receives_begun > row.receives_done:
                came = theirs.sends_begun if theirs else 0 if heard else -1
                yield _transfer_point(
                    PointKind.RECEIVE, "recv", rank, row.peer, row.receives_begun, came, absent
                )
            if row.sends_begun > row.sends_done:
                came = theirs.receives_begun if theirs else 0 if heard else -1
                yield _transfer_point(
                    PointKind.SEND, "send", rank, row.peer, row.sends_begun, came, absent
                )


def _transfer_point(
    kind: PointKind,
    operation: str,
    rank: int,
    peer: int,
    number: int,
    came: int,
    absent: frozenset[int],
) -> WaitPoint:
    """Make the point of one message; `came` counts the peer's calls, -1 when it is not known."""
    known = came >= 0 or peer in absent
    return WaitPoint(
        kind=kind,
        number=number,
        operation=operation,
        waiting=(rank,),
        missing=(peer,) if known and came < number else (),
        unknown=() if known else (peer,),
    )


def _find_ends(graph: WaitGraph) -> tuple[End, ...]:
    """Condense the graph; a component without a way out is an end."""
    names = sorted(graph.blocked_in.keys() | {r for p in graph.points for r in p.held_up_by})
    index_of = {rank: index for index, rank in enumerate(names)}
    offset = len(names)
    edges: list[list[int]] = [
        [offset + point for point in graph.blocked_in.get(rank, ())] for rank in names
    ]
    edges += [[index_of[rank] for rank in point.held_up_by] for point in graph.points]
    ends = []
    component_of, components = find_components(edges)
    leads_to = _count_waiting(edges, component_of, components, offset)
    for index, nodes in enumerate(components):
        if any(component_of[target] != index for node in nodes for target in edges[node]):
            continue
        ends.append(_describe_end(graph, names, offset, nodes, leads_to.get(index, 0)))
    return tuple(sorted(ends, key=lambda end: (-end.awaited_by, end.ranks)))


def _describe_end(
    graph: WaitGraph, names: Sequence[int], offset: int, nodes: Sequence[int], waiting: int
) -> End:
    ranks = sorted(names[node] for node in nodes if node < offset)
    points = tuple(graph.points[node - offset] for node in sorted(nodes) if node >= offset)
    if not ranks:
        return End(EndKind.POINT, points[0].waiting, points, waiting, points[0].certain)
    if len(ranks) == 1 and not points:
        certain = any(ranks[0] in graph.points[i].missing for i in _into(graph, ranks[0]))
        return End(EndKind.RANK, tuple(ranks), (), waiting, certain)
    certain = all(point.missing and point.certain for point in points)
    return End(EndKind.CYCLE, tuple(ranks), points, waiting, certain)


def _into(graph: WaitGraph, rank: int) -> Sequence[int]:
    return graph._points_by_missing.get(rank, ())


def _count_waiting(
    edges: Sequence[Sequence[int]],
    component_of: Sequence[int],
    components: Sequence[Sequence[int]],
    offset: int,
) -> dict[int, int]:
    """Count, for every end, the ranks outside of it from which it is reached.

    A rank that leads to several ends counts for the first that its search finds: exact counts would
    cost ranks times ends, and only their order is of use.
    """
    counts: dict[int, int] = {}
    end_of: list[int] = [-1] * len(components)
    # Tarjan numbers a component after all those it points to, so one pass forward is enough.
    for index, nodes in enumerate(components):
        targets = {component_of[t] for node in nodes for t in edges[node]} - {index}
        end_of[index] = min((end_of[target] for target in targets), default=index)
        if targets:
            ranks = sum(node < offset for node in nodes)
            counts[end_of[index]] = counts.get(end_of[index], 0) + ranks
    return counts
