"""Token buckets: they limit the rate of events, and allow a burst at the start.

`now` is an argument: the time of any clock in seconds.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class TokenBucket:
    """A bucket of at most `burst` tokens that gets `per_s` tokens per second. It starts full."""

    burst: float
    per_s: float
    _left: float = inf
    _at: float = -inf

    def left(self, now: float) -> float:
        """Return the number of tokens; it is negative after more were spent than existed."""
        if now > self._at:
            self._left = min(self.burst, self._left + (now - self._at) * self.per_s)
            self._at = now
        return self._left

    def take(self, now: float, count: float = 1.0) -> bool:
        """Take `count` tokens. Return False, and take none, if there are fewer."""
        if self.left(now) < count:
            return False
        self._left -= count
        return True

    def spend(self, now: float, count: float) -> None:
        """Take `count` tokens for work that is already done, even if there are fewer."""
        self._left = self.left(now) - count


class TokenBuckets(Generic[Key]):
    """A bucket for each key, at most `most` buckets.

    If there are `most` keys, a new key takes over the least recently used bucket with its remaining
    tokens. So invented keys do not create tokens.
    """

    def __init__(self, burst: float, per_s: float, most: int) -> None:
        self._burst, self._per_s, self._most = burst, per_s, most
        self._buckets: dict[Key, TokenBucket] = {}
        """In the order of the last use, most recent last."""

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._buckets)

    def find(self, key: Key) -> TokenBucket | None:
        """Return a key's bucket; None if it has none. This does not count as a use."""
        return self._buckets.get(key)

    def use(self, key: Key) -> TokenBucket:
        """Return a key's bucket, a new one if it has none, and mark it as used."""
        bucket = self._buckets.pop(key, None) or self._make()
        self._buckets[key] = bucket
        return bucket

    def _make(self) -> TokenBucket:
        if len(self._buckets) < self._most:
            return TokenBucket(self._burst, self._per_s)
        return self._buckets.pop(next(iter(self._buckets)))
