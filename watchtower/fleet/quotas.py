"""Quotas: how much of a limited resource one owner may use.

An owner may use more while it has less than what is left. Therefore the first owner gets at most a
half and the second one a quarter, and a new owner always gets some. The number of owners and the
size of a share need not be known. The rule is the same as in `fair_places.has_share`. But here the
total is stored, because there are thousands of owners and each new rank needs it.
"""

from __future__ import annotations

from collections import Counter


class Quota:
    """Counts how much of one limited resource each owner uses."""

    def __init__(self) -> None:
        self.total = 0
        self._by_owner: Counter[str] = Counter()

    def has_room(self, owner: str, limit: int, count: int = 1) -> bool:
        """Return whether an owner may use `count` more, one after the other.

        For an unknown owner only `limit` counts.
        """
        before = count - 1  # those that it has when it takes the last one
        left = limit - self.total - before
        return left > 0 and (not owner or self._by_owner[owner] + before < left)

    def is_nearly_full(self, owner: str, limit: int) -> bool:
        """Return whether an owner uses more than half of what it may use."""
        return bool(owner) and 2 * self._by_owner[owner] > limit - self.total

    def count(self, owner: str) -> int:
        """Return how much an owner uses."""
        return self._by_owner[owner]

    def add(self, owner: str, count: int) -> None:
        """Record that an owner uses `count` more; a negative count means less."""
        self.total += count
        self._by_owner[owner] += count
        if not self._by_owner[owner]:
            del self._by_owner[owner]
