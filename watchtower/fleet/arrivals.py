"""Arrivals: the batches of dumps that have arrived, and which of their ranks were not known then.

A batch may arrive twice. Then only the dumps of ranks that were not known the first time are new.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from watchtower.fleet.sizes import BATCH_BYTES, CHARACTER_BYTES, UNCLAIMED_BYTES

MAX_BYTES = 8 * 1024 * 1024
"""Limit for one attempt: two rounds of 8192 nodes whose ranks were all reported. Beyond it, the
oldest batches are dropped."""


@dataclass(slots=True)
class Arrivals:
    """The batches of one attempt that have arrived."""

    unclaimed: set[int] = field(default_factory=set)
    """Ranks whose dumps arrived before any report of them."""
    size: int = 0
    """Bytes of memory, an upper estimate."""
    _batches: dict[str, frozenset[int]] = field(default_factory=dict)
    """By batch id: the ranks that were not known when the batch arrived."""

    def left_of(self, batch_id: str) -> frozenset[int] | None:
        """Return the ranks for which a batch is still new; None for a batch not seen before."""
        return self._batches.get(batch_id)

    def note(self, batch_id: str, unclaimed: set[int]) -> None:
        """Record a batch, and its ranks that are not known."""
        if batch_id in self._batches:
            self._forget(batch_id)
        new = unclaimed - self.unclaimed
        self.unclaimed |= new
        self._batches[batch_id] = frozenset(unclaimed)
        self.size += _count(batch_id, unclaimed) + UNCLAIMED_BYTES * len(new)
        while self.size > MAX_BYTES and self._batches:
            self._forget(next(iter(self._batches)))
        if self.size > MAX_BYTES:
            self.clear()

    def claim(self, rank: int) -> bool:
        """Record that a rank was reported; True if dumps of it arrived before."""
        if rank not in self.unclaimed:
            return False
        self.unclaimed.discard(rank)
        self.size -= UNCLAIMED_BYTES
        return True

    def clear(self) -> None:
        """Drop all records."""
        self._batches.clear()
        self.unclaimed.clear()
        self.size = 0

    def _forget(self, batch_id: str) -> None:
        self.size -= _count(batch_id, self._batches.pop(batch_id))


def _count(batch_id: str, unclaimed: set[int] | frozenset[int]) -> int:
    return BATCH_BYTES + CHARACTER_BYTES * len(batch_id) + UNCLAIMED_BYTES * len(unclaimed)
