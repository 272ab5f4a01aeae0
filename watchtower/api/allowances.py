"""Limits per address: event loop time for refused messages, and bytes of bodies in memory.

Accepted messages do not use the limit of time, because a proxy or a test with a thousand agents
also has only one address.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from watchtower.service.sharing import Quota, TokenBuckets

NETWORK_BITS = 64
"""Length of the prefix of an IPv6 network. A machine can use any address in its own one."""


@lru_cache(maxsize=4096)
def share_of(address: str) -> str:
    """Return the name under which an address has its share: the address, or its IPv6 network.

    An IPv4 address in the form of IPv6 has the share of the IPv4 address. A link-local address is
    separate: all machines of a link have theirs in the same network.
    """
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return address
    if known.version == 4 or known.is_link_local or known.is_loopback:
        return address
    if known.ipv4_mapped is not None:
        return str(known.ipv4_mapped)
    return str(ipaddress.ip_network((int(known), NETWORK_BITS), strict=False))


WASTE_SHARE = 0.1
"""Share of the event loop's time that one address may use with refused messages."""

WASTE_BURST_S = 2.0
"""Seconds that may be used at once: about 20,000 small refused reports, or 20 of the largest."""

MAX_ADDRESSES = 4096
"""Addresses whose use is stored. A further address takes over the remaining allowance of the least
recently used one."""

MAX_HELD_DUMPS_BYTES = 128 * 1024 * 1024
"""Bytes of dumps in memory at once. Dumps of 2,000 nodes that hang at one moment need a third."""

MAX_HELD_REPORTS_BYTES = 64 * 1024 * 1024
"""Bytes of reports in memory at once. The limit is separate, so that dumps that wait for a slow
store never block reports. Reports of 2,000 nodes of 8 ranks at one moment need 10 MB."""


class WasteAllowance:
    """A token bucket for each address, in seconds of the event loop."""

    def __init__(self) -> None:
        self._buckets = TokenBuckets[str](WASTE_BURST_S, WASTE_SHARE, MAX_ADDRESSES)

    def is_spent(self, address: str, now: float) -> bool:
        """Return whether an address has used its allowance and must wait."""
        bucket = self._buckets.find(address)
        return bucket is not None and bucket.left(now) <= 0

    def charge(self, address: str, seconds: float, now: float) -> None:
        """Subtract the time of a refused message from the allowance of an address."""
        self._buckets.use(address).spend(now, seconds)


class HeldBytes:
    """Counts the bytes of bodies that are being received or stored. Addresses share the limit."""

    def __init__(self, limit: int) -> None:
        self._limit, self._held = limit, Quota()

    def take(self, address: str, count: int) -> bool:
        """Count bytes. Return False, and count nothing, if an address uses more than its share."""
        if not self._held.has_room(address, self._limit, count):
            return False
        self._held.add(address, count)
        return True

    def give_back(self, address: str, count: int) -> None:
        """Subtract bytes that were counted."""
        self._held.add(address, -count)
