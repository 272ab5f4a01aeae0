"""The wait-for graph: which rank waits for which, through which group, and where the waiting ends.

Nodes are ranks and wait points (collective `number` of a group, the n-th message from one rank to
another). A rank has come to a point, has not come, or it is unknown: where its counts cannot cover
the call, it is not certain that this rank holds up others. A rank points to the wait points it is
blocked in, a wait point to the ranks that have not come to it. Every rank that waits leads, over
any number of groups, to an end: a component of the graph that points nowhere else. An end is a rank
that does not wait (it holds up all of them), a wait point that all its ranks have reached (no rank
holds them up), or a cycle.

All these edges come from collective logs: only these name the call that a rank waits in.

Time and memory are linear in ranks, groups and edges; nothing here recurses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from watchtower.diagnosis.waits.collective_logs import CollectiveLogs, Group
from watchtower.evidence.collective_log import Entered, OpenCall
from watchtower.wire.bounds import MAX_PEERS
from watchtower.wire.collectives import ANY_PEER, PeerTransfers
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean

UNCOUNTED = -1
"""How often a peer called is not known."""

MAX_OPEN = 8
"""Wait points of one group. Its ranks are in one or two calls. More calls are made up by a process,
and each costs as much as the group has members."""


MAX_MEMBERS = 6
"""Members of a group that are listed beside its name."""


class PointKind(Enum):
    """The kinds of wait points."""

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
    """Ranks of which it is unknown whether they have."""
    group: Group | None = None
    """Null for messages between two ranks."""
    certain: bool = True
    """The ranks that wait are known to have entered, not only to have called."""

    @property
    def held_up_by(self) -> tuple[int, ...]:
        """Ranks it waits for: the missing ones; if there are none, the unknown ones."""
        return self.missing or self.unknown


def collective_points(
    logs: CollectiveLogs, free: frozenset[int], absent: frozenset[int], *, in_order: bool
) -> Iterator[WaitPoint]:
    """Yield the points of all collectives that some rank is blocked in.

    `free` ranks are not blocked in any call, `absent` ranks cannot enter any. `in_order`: a rank
    executes its calls in the order in which it made them, so it is blocked in the oldest open one
    and has not come to those after it.
    """
    for name, by_log in logs.in_group.items():
        group = logs.groups[name]
        opened: dict[int, list[str]] = {}
        doubtful: set[int] = set()
        reached = logs.find_reached(name)
        for digest in by_log:
            found = logs.by_digest[digest].find_open_call(reached)
            if found is not None:
                opened.setdefault(found.number, []).append(digest)
                doubtful.update(() if found.certain else (found.number,))
        silent: tuple[int, ...] | None = None
        waits = {
            number: [
                rank
                for digest in digests
                for rank in by_log[digest]
                if rank not in free and not (in_order and logs.is_queued(rank, name))
            ]
            for number, digests in opened.items()
        }
        for number in _most_waited(waits):
            waiting = waits[number]
            if silent is None:
                heard = {rank for ranks in by_log.values() for rank in ranks}
                silent = tuple(rank for rank in group.members if rank not in heard)
            call = OpenCall(number, certain=number not in doubtful)
            yield _collective_point(logs, group, call, waiting, silent, absent, in_order)


def _most_waited(waits: Mapping[int, Sequence[int]]) -> list[int]:
    """Return at most MAX_OPEN numbers, those that most ranks wait in, in ascending order."""
    numbers = [number for number, ranks in waits.items() if ranks]
    return sorted(sorted(numbers, key=lambda number: (-len(waits[number]), number))[:MAX_OPEN])


def _collective_point(
    logs: CollectiveLogs,
    group: Group,
    call: OpenCall,
    waiting: Sequence[int],
    silent: Sequence[int],
    absent: frozenset[int],
    in_order: bool,
) -> WaitPoint:
    missing: list[int] = []
    unknown: list[int] = []
    there = frozenset(waiting)
    number, certain, operation = call.number, call.certain, ""
    for digest, ranks in logs.in_group[group.id].items():
        log = logs.by_digest[digest]
        entered = log.has_entered(number)
        if ranks[0] in there or there.intersection(ranks):
            operation = operation or log.record_of(number).operation
            certain = certain and entered is Entered.YES
        if entered is Entered.NO:
            missing += ranks
        elif entered is Entered.UNKNOWN:
            queued = {rank for rank in ranks if in_order and logs.is_queued(rank, group.id)}
            missing += queued
            unknown += [rank for rank in ranks if rank not in there and rank not in queued]
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


def transfer_points(
    logs: CollectiveLogs, free: frozenset[int], absent: frozenset[int]
) -> Iterator[WaitPoint]:
    """Yield the points of all messages that some rank is blocked in; ranks as above."""
    for rank, rows in logs.transfers.items():
        if rank in free:
            continue
        for row in rows:
            if row.peer < 0:
                continue
            if row.receives_begun > row.receives_done:
                came = _count_sends(logs, row, rank)
                yield _transfer_point(
                    PointKind.RECEIVE, "recv", rank, row.peer, row.receives_done + 1, came, absent
                )
            if row.sends_begun > row.sends_done:
                came = _count_receives(logs, row, rank)
                yield _transfer_point(
                    PointKind.SEND, "send", rank, row.peer, row.sends_done + 1, came, absent
                )


def _count_sends(logs: CollectiveLogs, row: PeerTransfers, rank: int) -> int:
    """Count the sends of a row's peer to `rank`; UNCOUNTED when its counts cannot be all of them.

    Only blocking calls are counted. A rank that has received more than its peer counts as sent was
    served by another kind of send, and its next message may come that way too.
    """
    rows = logs.transfers.get(row.peer, ())
    theirs = logs.transfers_with(row.peer, rank)
    if not any(each.sends_begun for each in rows) or (theirs is None and len(rows) >= MAX_PEERS):
        return UNCOUNTED
    count = theirs.sends_begun if theirs else 0
    return UNCOUNTED if count < row.receives_done else count


def _count_receives(logs: CollectiveLogs, row: PeerTransfers, rank: int) -> int:
    """Count the receives of a row's peer from `rank`, UNCOUNTED as for sends.

    A receive from any peer may be one from `rank`.
    """
    rows = logs.transfers.get(row.peer, ())
    theirs = logs.transfers_with(row.peer, rank)
    if any(each.peer == ANY_PEER and each.receives_begun for each in rows):
        return UNCOUNTED
    if not any(each.receives_begun for each in rows) or (theirs is None and len(rows) >= MAX_PEERS):
        return UNCOUNTED
    count = theirs.receives_begun if theirs else 0
    return UNCOUNTED if count < row.sends_done else count


def _transfer_point(
    kind: PointKind,
    operation: str,
    rank: int,
    peer: int,
    number: int,
    came: int,
    absent: frozenset[int],
) -> WaitPoint:
    """Return the point of one message; `came` counts the calls of the peer."""
    known = came != UNCOUNTED or peer in absent
    return WaitPoint(
        kind=kind,
        number=number,
        operation=operation,
        waiting=(rank,),
        missing=(peer,) if known and came < number else (),
        unknown=() if known else (peer,),
    )


def describe_group(group: Group) -> str:
    """Return "group tensor_parallel (ranks 2-3)"."""
    ranks = name_ranks(group.members) if len(group.members) <= MAX_MEMBERS else ""
    size = ranks or f"{len(group.members)} ranks"
    name = clean(group.name, 40)
    return f"group {name} ({size})" if name else f"the group of {size}"


def name_point(point: WaitPoint) -> str:
    """Return "all_reduce number 41 of group tensor_parallel (ranks 2-3)", or "recv number 41"."""
    operation = clean(point.operation, 60) or "collective"
    where = "" if point.group is None else f" of {describe_group(point.group)}"
    return f"{operation} number {point.number}{where}"


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
        into = graph._points_by_missing.get(ranks[0], ())
        certain = any(graph.points[index].missing for index in into)
        return End(EndKind.RANK, tuple(ranks), (), waiting, certain)
    certain = all(point.missing and point.certain for point in points)
    return End(EndKind.CYCLE, tuple(ranks), points, waiting, certain)


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


def find_components(edges: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Return the component of each node, and the nodes of each component.

    `edges[n]` are the nodes that node n points to. A component comes after every one it points to.
    Takes time linear in nodes and edges (R. Tarjan, SIAM J. Comput. 1, 1972).
    """
    search = _Search(edges)
    for root in range(len(edges)):
        if search.order[root] < 0:
            search.explore(root)
    return search.component_of, search.components


class _Search:
    """A depth-first search whose path is a list, so that no depth is too much."""

    def __init__(self, edges: Sequence[Sequence[int]]) -> None:
        self.edges = edges
        self.order = [-1] * len(edges)
        self.low = [0] * len(edges)
        self.component_of = [-1] * len(edges)
        self.components: list[list[int]] = []
        self._open: list[int] = []
        self._path: list[tuple[int, int]] = []
        """Nodes on the way, each with the edge to follow next."""
        self._visited = 0

    def explore(self, root: int) -> None:
        self._enter(root)
        path, edges, order, low = self._path, self.edges, self.order, self.low
        while path:
            node, at = path[-1]
            if at == len(edges[node]):
                self._leave(node)
                continue
            path[-1] = (node, at + 1)
            target = edges[node][at]
            if order[target] < 0:
                self._enter(target)
            elif self.component_of[target] < 0:
                low[node] = min(low[node], order[target])

    def _enter(self, node: int) -> None:
        self.order[node] = self.low[node] = self._visited
        self._visited += 1
        self._open.append(node)
        self._path.append((node, 0))

    def _leave(self, node: int) -> None:
        self._path.pop()
        if self._path:
            parent = self._path[-1][0]
            self.low[parent] = min(self.low[parent], self.low[node])
        if self.low[node] == self.order[node]:
            self._close(node)

    def _close(self, root: int) -> None:
        """Take the component of `root` off: everything opened since."""
        first = len(self._open) - 1
        while self._open[first] != root:
            first -= 1
        members = self._open[first:]
        del self._open[first:]
        for member in members:
            self.component_of[member] = len(self.components)
        self.components.append(members)
