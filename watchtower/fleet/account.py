"""The byte account: counts the memory of jobs and nodes that may be dropped, by owner and node.

It counts all data that grows with the agents' messages:
* bodies of dumps
* second claims of a rank
* processes of earlier attempts
* long texts
* cases of diagnoses
* step histories

A founding node is the node that first reported a job. If the total is too large, the owner or
founding node with the most bytes loses data of its largest job. If it is a node, the job is one of
the owner with the most bytes there. Therefore a job keeps its dumps even if another node reports
many jobs or invents many owners.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Protocol

from watchtower.service.sharing import Quota

LOW_WATER = 7 / 8
"""Share of the limit that may remain after data was dropped, so that the next drop is not due at
once."""

Key = tuple[str, str]
"""The kind of a holder, and the name of its job or node."""


class Holder(Protocol):
    """A part of the tower's memory that can drop data."""

    @property
    def droppable_bytes(self) -> int:
        """Bytes that it can drop."""

    def drop(self, excess: int) -> None:
        """Drop at least `excess` bytes, largest part first; everything if there are fewer."""


@dataclass(slots=True)
class _Entry:
    holder: Holder
    owner: str
    node: str
    size: int


class Account:
    """Counts bytes by owner and by founding node."""

    def __init__(self) -> None:
        self._by_owner, self._by_node = Quota(), Quota()
        self._entries: dict[Key, _Entry] = {}

    @property
    def total(self) -> int:
        """Bytes of all holders."""
        return self._by_owner.total

    def note(self, key: Key, holder: Holder, owner: str, node: str) -> None:
        """Update the size, owner and founding node of one holder."""
        entry, size = self._entries.get(key), holder.droppable_bytes
        if entry is None and not size:
            return
        if entry is not None:
            if entry.size == size and entry.owner == owner:
                entry.holder = holder
                return
            self.remove(key)
        if size:
            self._entries[key] = _Entry(holder, owner, node, size)
            self._add(self._entries[key], 1)

    def remove(self, key: Key) -> None:
        """Remove a holder from the account; unknown keys are skipped."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._add(entry, -1)

    def keep_to(self, limit: int) -> None:
        """If the total is more than `limit` bytes, make the largest holders drop data."""
        if self.total <= limit:
            return
        target = int(LOW_WATER * limit)
        for key in self._largest_first():
            entry = self._entries[key]
            entry.holder.drop(self.total - target)
            self.note(key, entry.holder, entry.owner, entry.node)
            if self.total <= target:
                return

    def _add(self, entry: _Entry, sign: int) -> None:
        self._by_owner.add(entry.owner, sign * entry.size)
        self._by_node.add(entry.node, sign * entry.size)

    def _largest_first(self) -> Iterator[Key]:
        """Yield the largest holder of the owner or node with the most bytes, again and again.

        Sizes may change between two values.
        """
        shares = (self._by_owner, self._by_node)
        items: defaultdict[tuple[int, str], list[Key]] = defaultdict(list)
        for key, entry in self._entries.items():
            items[0, entry.owner].append(key)
            items[1, entry.node].append(key)
        orders: dict[tuple[int, str], Iterator[Key]] = {}
        most = [(-shares[kind].count(name), kind, name) for kind, name in items]
        heapify(most)
        while most:
            size, kind, name = heappop(most)
            now = -shares[kind].count(name)
            if now == size:
                order = orders.get((kind, name))
                if order is None:
                    order = orders[kind, name] = iter(self._order(items[kind, name]))
                largest = next(order, None)
                if largest is None:
                    continue
                if largest in self._entries:
                    yield largest
                now = -shares[kind].count(name)
            if now:
                heappush(most, (now, kind, name))

    def _order(self, keys: Iterable[Key]) -> list[Key]:
        """Return holders in order: next is the largest one of the owner with most bytes left."""
        by_owner: defaultdict[str, list[tuple[int, Key]]] = defaultdict(list)
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None:
                by_owner[entry.owner].append((entry.size, key))
        for held in by_owner.values():
            held.sort()
        most = [(-sum(size for size, _ in held), owner) for owner, held in by_owner.items()]
        heapify(most)
        order: list[Key] = []
        while most:
            total, owner = heappop(most)
            size, largest = by_owner[owner].pop()
            order.append(largest)
            if by_owner[owner]:
                heappush(most, (total + size, owner))
        return order
