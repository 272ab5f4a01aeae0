"""The byte account: what jobs and nodes keep in memory that may be dropped, and whose it is.

Whatever grows with what agents send is counted here: bodies of dumps, second claims of a rank,
processes of earlier attempts, long texts, cases of diagnoses. If there is too much, the owner or
the founding node that has most loses from the largest of its jobs; of a node's owners the one that
has most there. So neither many jobs, nor many owners that one node invents, cost the job of another
node its dumps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Protocol

from watchtower.core.fleet.quotas import Quota

LOW_WATER = 7 / 8
"""Share of the limit that is left after something was dropped, so that it is not needed at once
again."""

Key = tuple[str, str]
"""What kind of thing it is, and the name of its job or node."""


class Holder(Protocol):
    """A part of the tower's memory."""

    @property
    def droppable_bytes(self) -> int:
        """Bytes that it keeps and can drop."""

    def drop(self, excess: int) -> None:
        """Drop so many bytes or somewhat more, the largest part first; all if there are fewer."""


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
        """Bring one holder up to date: how much it has now, and whose it is."""
        entry, size = self._entries.get(key), holder.droppable_bytes
        if entry is None and not size:
            return
        if entry is not None:
            if (entry.size, entry.owner, entry.holder) == (size, owner, holder):
                return
            self.remove(key)
        if size:
            self._entries[key] = _Entry(holder, owner, node, size)
            self._add(self._entries[key], 1)

    def remove(self, key: Key) -> None:
        """Take out a holder that is gone."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._add(entry, -1)

    def keep_to(self, limit: int) -> None:
        """Have the largest holders drop what is more than `limit` bytes."""
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
        """Yield what the owner or node with most has most of; sizes may change in between."""
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
        """Order holders: each time the largest of the owner that has most of those left."""
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
