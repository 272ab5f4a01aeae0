"""Quotas: how much of what there is one owner may take.

An owner may take more while it has less than is left: the first owner has at most a half, a second
one a quarter, and there is room for an owner that has nothing yet. No number of owners and no size
of a share has to be known beforehand. It is the rule of `fair_places.has_share`, but the total is
kept: there are thousands of owners, and each new rank asks.
"""

from __future__ import annotations

from collections import Counter


class Quota:
    """Counts what owners have of one bounded thing."""

    def __init__(self) -> None:
        self.total = 0
        self._by_owner: Counter[str] = Counter()

    def has_room(self, owner: str, limit: int) -> bool:
        """Return whether an owner may take one more. Of an unknown owner only the bound counts."""
        left = limit - self.total
        return left > 0 and (not owner or self._by_owner[owner] < left)

    def is_crowded(self, owner: str, limit: int) -> bool:
        """Return whether an owner has most of what it may have."""
        return bool(owner) and 2 * self._by_owner[owner] > limit - self.total

    def count(self, owner: str) -> int:
        """Return how much an owner has."""
        return self._by_owner[owner]

    def add(self, owner: str, count: int) -> None:
        """Note that an owner has taken `count`, or given back `-count`."""
        self.total += count
        self._by_owner[owner] += count
        if not self._by_owner[owner]:
            del self._by_owner[owner]
