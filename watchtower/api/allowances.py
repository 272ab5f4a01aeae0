"""Allowances: what one address may cost the tower with messages that lead to nothing.

Good messages cost nothing here, however many there are: a proxy, or a test with a thousand agents,
is one address too.
"""

from __future__ import annotations

from collections import Counter

from watchtower.token_bucket import TokenBuckets

WASTE_SHARE = 0.1
"""Of the event loop's time, what one address may waste with messages that are refused."""

WASTE_BURST_S = 2.0
"""Saved up at most: some twenty thousand small refused reports, or twenty of the largest."""

MAX_ADDRESSES = 4096
"""Addresses remembered that wasted time. Beyond it a further one takes over what the oldest one has
left of its allowance."""

MAX_HELD_DUMPS_BYTES = 128 * 1024 * 1024
"""Bodies in memory at once: dumps of two thousand nodes that hang together are a third of it."""

MAX_HELD_REPORTS_BYTES = 64 * 1024 * 1024
"""Of their own, so that dumps that wait for a slow store never keep reports out: those of two
thousand nodes of eight ranks are 10 MB, if all of them came at one moment."""

ONE_ADDRESS = 0.5
"""One address may hold this share of them."""


class WasteAllowance:
    """A token bucket for each address, in seconds of the event loop."""

    def __init__(self) -> None:
        self._buckets = TokenBuckets[str](WASTE_BURST_S, WASTE_SHARE, MAX_ADDRESSES)

    def is_spent(self, address: str, now: float) -> bool:
        """Whether an address has to wait."""
        bucket = self._buckets.find(address)
        return bucket is not None and bucket.left(now) <= 0

    def charge(self, address: str, seconds: float, now: float) -> None:
        """Count time that was wasted."""
        self._buckets.use(address).spend(now, seconds)


class HeldBytes:
    """Bytes of bodies that are being received, or stored."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._by_address: Counter[str] = Counter()

    def take(self, address: str, count: int) -> bool:
        """Count bytes; False when there is no room for them."""
        most_of_one = self._limit * ONE_ADDRESS
        if self._held + count > self._limit or self._by_address[address] + count > most_of_one:
            return False
        self._held += count
        self._by_address[address] += count
        return True

    def give_back(self, address: str, count: int) -> None:
        """Let go of bytes that were counted."""
        self._held -= count
        self._by_address[address] -= count
        if self._by_address[address] <= 0:
            del self._by_address[address]
