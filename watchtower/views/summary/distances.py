"""How far each rank is from the end of the waiting, and which ranks wait for each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from watchtower.diagnosis.waits.graph import find_components

Wait = tuple[Sequence[int], Sequence[int]]
"""Ranks that wait in one call, and the ranks that it waits for."""


def measure_waits(waits: Sequence[Wait]) -> tuple[dict[int, int], dict[int, int]]:
    """Return the distance of each rank, and the cycle of each rank that is in one.

    A rank is further away than all ranks that it waits for, except those of its own cycle. The
    ranks of a cycle are equally far away. Takes time linear in the ranks of all calls.
    """
    walk = _Walk(waits)
    walk.go_up()
    left = walk.unfinished()
    return walk.distance, walk.measure_cycles(left) if left else {}


class _Walk:
    """Goes from the ends of the waiting upwards."""

    def __init__(self, waits: Sequence[Wait]) -> None:
        self._waits = waits
        self._open_calls: dict[int, int] = {}
        """By rank, the number of its calls whose distance is not known yet."""
        self._awaited_in: dict[int, list[int]] = {}
        self._open_ranks = [len(awaited) for _, awaited in waits]
        """By call, the number of awaited ranks whose distance is not known yet."""
        self._below = [-1] * len(waits)
        """By call, the largest known distance of a rank that it waits for."""
        for index, (waiting, awaited) in enumerate(waits):
            for rank in waiting:
                self._open_calls[rank] = self._open_calls.get(rank, 0) + 1
            for rank in awaited:
                self._open_calls.setdefault(rank, 0)
                self._awaited_in.setdefault(rank, []).append(index)
        self.distance: dict[int, int] = dict.fromkeys(self._open_calls, 0)

    def go_up(self) -> None:
        """Measure all ranks from which no cycle is reached."""
        calls = [index for index, count in enumerate(self._open_ranks) if not count]
        ranks = [rank for rank, count in self._open_calls.items() if not count]
        while ranks or calls:
            for index in calls:
                ranks += self._close_call(index)
            calls = [index for rank in ranks for index in self._close_rank(rank)]
            ranks = []

    def _close_call(self, index: int) -> list[int]:
        """Measure those that wait in a call. Return the ranks whose distance is now known."""
        above, done = self._below[index] + 1, []
        distance, open_calls = self.distance, self._open_calls
        for rank in self._waits[index][0]:
            distance[rank] = max(distance[rank], above)
            open_calls[rank] -= 1
            if not open_calls[rank]:
                done.append(rank)
        return done

    def _close_rank(self, rank: int) -> list[int]:
        """Return the calls whose distance is known with that of this rank."""
        own, done = self.distance[rank], []
        for index in self._awaited_in.get(rank, ()):
            self._below[index] = max(self._below[index], own)
            self._open_ranks[index] -= 1
            if not self._open_ranks[index]:
                done.append(index)
        return done

    def unfinished(self) -> list[int]:
        """Return the ranks from which a cycle is reached."""
        return [rank for rank, count in self._open_calls.items() if count]

    def measure_cycles(self, left: Sequence[int]) -> dict[int, int]:
        """Measure the ranks from which a cycle is reached. Return the cycle of each in one."""
        edges, calls = self._edges_between(left)
        offset = len(left)
        component_of, components = find_components(edges)
        levels = [0] * len(components)
        cycle: dict[int, int] = {}
        # A component comes after every one that it points to.
        for number, nodes in enumerate(components):
            ranks = [left[node] for node in nodes if node < offset]
            targets = {component_of[target] for node in nodes for target in edges[node]}
            below = [levels[other] for other in targets if other != number]
            below += [self._below[calls[node - offset]] for node in nodes if node >= offset]
            level = max(below, default=-1)
            if ranks:  # only ranks count, not the calls between them
                level = max(level + 1, *(self.distance[rank] for rank in ranks))
            levels[number] = level
            self.distance.update(dict.fromkeys(ranks, levels[number]))
            if len(ranks) > 1:
                cycle.update(dict.fromkeys(ranks, number))
        return cycle

    def _edges_between(self, left: Sequence[int]) -> tuple[list[list[int]], list[int]]:
        """Return the edges between these ranks and the calls that wait for them, and the calls.

        The calls follow the ranks.
        """
        index_of = {rank: index for index, rank in enumerate(left)}

        def among(ranks: Iterable[int]) -> list[int]:
            return [index_of[rank] for rank in ranks if rank in index_of]

        calls = [index for index, count in enumerate(self._open_ranks) if count]
        edges: list[list[int]] = [[] for _ in left]
        for number, index in enumerate(calls):
            for node in among(self._waits[index][0]):
                edges[node].append(len(left) + number)
        edges += [among(self._waits[index][1]) for index in calls]
        return edges, calls
