"""Reads which connections of a rank get no answer, and where a rank can be reached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import ip_address

from watchtower.wire.connections import Connection, LocalAddress
from watchtower.wire.dumps import RankDump
from watchtower.wire.sockets import split_port

LEAST_TRIES = 3
"""Tries in a row, without an answer, from which a connection is in trouble: each pause is twice as
long as the one before. On a network that is only busy, the first or second try is answered."""


def find_stalled(dumps: Sequence[RankDump]) -> tuple[Connection, ...]:
    """Return the open connections on which nothing got through between the last two dumps, and that
    the kernel tries again and again; those with most tries first.
    """
    if len(dumps) < 2:
        return ()
    before = {(each.local, each.remote): each for each in _troubled(dumps[-2]) if each.tries}
    return tuple(
        each
        for each in _troubled(dumps[-1])
        if not each.opening
        and each.tries >= LEAST_TRIES
        and (earlier := before.get((each.local, each.remote))) is not None
        and each.tries >= earlier.tries
        and each.unanswered_bytes >= earlier.unanswered_bytes
    )


def find_unopened(dumps: Sequence[RankDump]) -> tuple[Connection, ...]:
    """Return the connections that the other end has not accepted in spite of several tries."""
    if not dumps:
        return ()
    return tuple(
        each for each in _troubled(dumps[-1]) if each.opening and each.tries >= LEAST_TRIES
    )


def find_address(dumps: Sequence[RankDump], address: str) -> LocalAddress | None:
    """Return what is known of an address of this rank; None if it does not have it."""
    return next((each for each in list_addresses(dumps) if each.address == address), None)


def list_addresses(dumps: Sequence[RankDump]) -> tuple[LocalAddress, ...]:
    """Return the addresses at which a rank has connections."""
    network = dumps[-1].network if dumps else None
    return network.addresses if network is not None else ()


def listens_at(
    dumps: Sequence[RankDump], address: str, port: int, *, is_here: bool = False
) -> bool:
    """Return whether a rank with this address accepts connections there.

    `is_here`: it is on the node of the rank that asks, and so has its loopback address.
    """
    is_own = is_here and _is_loopback(address)
    network = dumps[-1].network if dumps else None
    for host, number in map(split_port, network.listening if network is not None else ()):
        is_any = _is_any(host) and (is_own or find_address(dumps, address) is not None)
        is_there = is_any or (host == address and (is_own or not _is_loopback(address)))
        if number == port and is_there:
            return True
    return False


def _troubled(dump: RankDump) -> Iterator[Connection]:
    yield from dump.network.troubled if dump.network is not None else ()


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_any(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
