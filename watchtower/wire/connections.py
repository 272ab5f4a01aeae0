"""The network connections of a rank, as its agent reads them with a dump."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.wire.bounds import AGE, INTEGER, NAME, between, both, bounded, entries, every

MAX_TROUBLED = 8
"""Connections in trouble sent per rank, those with most tries first. One names the path."""

MAX_ADDRESSES = 8
"""Local addresses sent per rank: one for each of a node's network cards."""

MAX_PORTS = 128
"""Local ports sent per address: with its two neighbours a rank has some dozens of connections."""

MAX_LISTENING = 8
"""Sockets sent per rank that accept connections: those of a store and of each library."""

MAX_PORT = 65_535
"""Ports have 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    local=NAME,
    remote=NAME,
    tries=INTEGER,
    pause_s=AGE,
    unanswered_bytes=INTEGER,
    resent=INTEGER,
    segment_bytes=INTEGER,
    path_mtu=INTEGER,
)
class Connection:
    """A TCP connection whose other end does not answer."""

    local: str
    """Address and port: "10.0.0.1:2000", "[fd00::1]:2000"."""
    remote: str
    tries: int
    """How often in a row the kernel has sent the same data again, without an answer. It is 0 again
    with the next answer."""
    opening: bool = False
    """The other end has not accepted the connection yet."""
    pause_s: float = 0.0
    """Seconds between the last try and the next one. Each pause is twice as long as the one
    before."""
    unanswered_bytes: int = 0
    """Bytes that wait to be sent or acknowledged."""
    resent: int = 0
    """Segments sent again since the connection was opened; 0 if not known, as for the next two."""
    segment_bytes: int = 0
    """Largest number of bytes that the kernel sends in one packet, without headers."""
    path_mtu: int = 0
    """Largest packet that the kernel believes to reach the other end."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    address=NAME,
    interface=NAME,
    mtu=INTEGER,
    ports=both(entries(MAX_PORTS), every(between(0, MAX_PORT))),
)
class LocalAddress:
    """An address at which a rank has connections."""

    address: str
    """Without a port: "10.0.0.1"."""
    interface: str = ""
    """The network interface with this address; empty if not known."""
    mtu: int = 0
    """Largest packet of the interface; 0 if not known."""
    ports: tuple[int, ...] = ()
    """Local ports of its connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    troubled=entries(MAX_TROUBLED),
    addresses=entries(MAX_ADDRESSES),
    listening=both(entries(MAX_LISTENING), every(NAME)),
)
class RankNetwork:
    """The TCP sockets of a rank's process. Those inside of its node are left out."""

    troubled: tuple[Connection, ...] = ()
    addresses: tuple[LocalAddress, ...] = ()
    listening: tuple[str, ...] = ()
    """Addresses and ports at which it accepts connections: "0.0.0.0:29500"."""
