"""The wait-for graph: which rank waits for which, through which group, and where the waiting ends.

Nodes are ranks and wait points (collective `number` of a group, the n-th message from one rank to
another). A rank points to the wait points it is blocked in, a wait point to the ranks that have not
come to it. Every rank that waits leads, over any number of groups, to an end: a component of the
graph that points nowhere else. An end is a rank that does not wait (it holds up all of them), a
wait point that all its ranks have reached (no rank holds them up), or a cycle.

All these edges come from collective logs: only these name the call that a rank waits in.

Time and memory are linear in ranks, groups and edges; nothing here recurses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from watchtower.diagnosis.graph_components import find_components
from watchtower.diagnosis.waits.collective_logs import CollectiveLogs
from watchtower.diagnosis.waits.points import WaitPoint, collective_points, transfer_points


class EndKind(Enum):
    """The kinds of ends of the waiting."""

    RANK = "rank"
    """A rank that does not wait."""
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
    """The logs show that these ranks have not come to some wait point that leads here."""


@dataclass(frozen=True)
class WaitGraph:
    """The graph, and its ends, the one most ranks lead to first. (No slots: see `Positions`.)"""

    points: tuple[WaitPoint, ...]
    blocked_in: Mapping[int, tuple[int, ...]]
    """By rank, the indices of the points it is blocked in."""
    ends: tuple[End, ...] = field(default=())

    @cached_property
    def sinks(self) -> frozenset[int]:
        """Ranks that hold up others and do not wait."""
        return self._in_ends(self._sink_ends)

    @cached_property
    def certain_sinks(self) -> frozenset[int]:
        """Sinks of which the logs show that they have not come."""
        return self._in_ends(end for end in self._sink_ends if end.certain)

    def points_of(self, rank: int) -> tuple[WaitPoint, ...]:
        """Return the points a rank is blocked in. If it is in a cycle, so are all of them: no wait
        leads out of an end.
        """
        return tuple(self.points[index] for index in self.blocked_in.get(rank, ()))

    @cached_property
    def _sink_ends(self) -> tuple[End, ...]:
        return tuple(end for end in self.ends if end.kind is EndKind.RANK)

    @staticmethod
    def _in_ends(ends: Iterable[End]) -> frozenset[int]:
        return frozenset(rank for end in ends for rank in end.ranks)

    def path_to(self, end: End) -> tuple[tuple[int, WaitPoint], ...]:
        """Return the longest of the shortest paths to an end: each rank and where it waits.

        Each point is visited once, though many ranks may hold it up: its first visit finds all of
        its ranks. Otherwise two groups of all ranks would cost the square of the ranks.
        """
        into = self._points_by_missing
        following: dict[int, tuple[int, WaitPoint]] = {}
        seen = set(end.ranks)
        visited: set[int] = set()
        queue = deque(end.ranks)
        last = end.ranks[0] if end.ranks else -1
        while queue:
            last = queue.popleft()
            for index in into.get(last, ()):
                if index in visited:
                    continue
                visited.add(index)
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
    logs: CollectiveLogs,
    elsewhere: Collection[int],
    absent: Collection[int],
    *,
    in_order: bool = False,
) -> WaitGraph:
    """Build the graph.

    `elsewhere`: ranks whose stack shows that they are not in any call that waits, so that a call of
    theirs still under way in the background does not block them. `absent`: ranks that cannot enter
    any call (dead, stopped, never started). `in_order`: each rank executes its calls in the order
    in which it made them.
    """
    absent = frozenset(absent)
    free = absent.union(elsewhere)
    points = [
        *collective_points(logs, free, absent, in_order=in_order),
        *transfer_points(logs, free, absent),
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


def _find_ends(graph: WaitGraph) -> tuple[End, ...]:
    """Condense the graph; a component from which no edge leads out is an end."""
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
        # A point waits for the ranks known to be missing, or else for those of which it is unknown.
        certain = any(graph.points[index].missing for index in _into(graph, ranks[0]))
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
