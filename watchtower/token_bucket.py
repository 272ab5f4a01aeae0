"""Token buckets: how often something may happen, where it may first happen some times at once.

Decided by value: `now` is an argument, of any clock that runs in seconds.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class TokenBucket:
    """Holds at most `burst` tokens and gets `per_s` of them each second. It begins full."""

    burst: float
    per_s: float
    _left: float = inf
    _at: float = -inf

    def left(self, now: float) -> float:
        """Return the tokens in it; below 0 while more was spent than there was."""
        if now > self._at:
            self._left = min(self.burst, self._left + (now - self._at) * self.per_s)
            self._at = now
        return self._left

    def take(self, now: float, count: float = 1.0) -> bool:
        """Take so many tokens; False, and nothing is taken, when there are fewer."""
        if self.left(now) < count:
            return False
        self._left -= count
        return True

    def spend(self, now: float, count: float) -> None:
        """Take tokens for what was done already and cost as much, also more than there are."""
        self._left = self.left(now) - count


class TokenBuckets(Generic[Key]):
    """A bucket for each key, and no more than `most` of them.

    A further key takes over the bucket that was unused for longest, with what is left in it. So
    keys that others invent make no tokens, and while many are invented a new one gets none.
    """

    def __init__(self, burst: float, per_s: float, most: int) -> None:
        self._burst, self._per_s, self._most = burst, per_s, most
        self._buckets: dict[Key, TokenBucket] = {}
        """The one that was used last is the last one."""

    def __len__(self) -> int:
        """Return how many keys are known."""
        return len(self._buckets)

    def find(self, key: Key) -> TokenBucket | None:
        """Return a key's bucket, None when there is none; that is not a use."""
        return self._buckets.get(key)

    def use(self, key: Key) -> TokenBucket:
        """Return a key's bucket."""
        bucket = self._buckets.pop(key, None) or self._make()
        self._buckets[key] = bucket
        return bucket

    def _make(self) -> TokenBucket:
        if len(self._buckets) < self._most:
            return TokenBucket(self._burst, self._per_s)
        return self._buckets.pop(next(iter(self._buckets)))
