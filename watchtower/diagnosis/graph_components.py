"""Strongly connected components of a graph, by Tarjan's algorithm without recursion."""

from __future__ import annotations

from collections.abc import Sequence


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
