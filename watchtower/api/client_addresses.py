"""Which addresses of clients share one limit."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

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
