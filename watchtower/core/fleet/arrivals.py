"""Arrivals: which batches of dumps have come, and which of their ranks were not reported yet.

A batch may arrive twice: then only its dumps of ranks that were not known the first time are new.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from watchtower.core.fleet.sizes import BATCH_BYTES, CHARACTER_BYTES, UNCLAIMED_BYTES

MAX_BYTES = 8 * 1024 * 1024
"""Of one attempt; the oldest make room. Two rounds of 8192 nodes whose ranks were all reported."""


@dataclass(slots=True)
class Arrivals:
    """The batches of one attempt."""

    unclaimed: set[int] = field(default_factory=set)
    """Ranks that dumps came of before any report."""
    size: int = 0
    """Bytes of what is remembered, at least."""
    _batches: dict[str, frozenset[int]] = field(default_factory=dict)
    """By id: the ranks that were not known."""

    def left_of(self, batch_id: str) -> frozenset[int] | None:
        """Return the ranks that a batch is still new for; None for a batch not seen before."""
        return self._batches.get(batch_id)

    def note(self, batch_id: str, unclaimed: set[int]) -> None:
        """Remember a batch, and those of its ranks that were not known."""
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
        """Note that a rank was reported; True if dumps of it had come before."""
        if rank not in self.unclaimed:
            return False
        self.unclaimed.discard(rank)
        self.size -= UNCLAIMED_BYTES
        return True

    def clear(self) -> None:
        """Forget everything."""
        self._batches.clear()
        self.unclaimed.clear()
        self.size = 0

    def _forget(self, batch_id: str) -> None:
        self.size -= _count(batch_id, self._batches.pop(batch_id))


def _count(batch_id: str, unclaimed: set[int] | frozenset[int]) -> int:
    return BATCH_BYTES + CHARACTER_BYTES * len(batch_id) + UNCLAIMED_BYTES * len(unclaimed)
