"""Dumper: the TCP connections of ranks: those that get no answer, and the addresses of all.

The kernel's tables in /proc show both for every network namespace. How large the packets of an
interface and of a connection are, only netlink shows, from inside the namespace. An agent without
the right to enter it (CAP_SYS_ADMIN) reports the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from agent.dumpers.dumper import RanksOfRound, Step
from agent.dumpers.kernel_state import SocketTables, read_socket
from agent.netlink import Interface, TcpInfo, in_network_of, read_interfaces, read_tcp
from agent.procfs import Proc
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.connections import (
    MAX_ADDRESSES,
    MAX_LISTENING,
    MAX_PORTS,
    MAX_TROUBLED,
    Connection,
    LocalAddress,
    RankNetwork,
)
from watchtower.wire.sockets import Ends, split_port
from watchtower.writing.printable import printable

MAX_DESCRIPTORS = 4096
"""Descriptors of one rank that are read, at 5 us each."""


@dataclass(frozen=True, slots=True)
class Packets:
    """What netlink shows of one network namespace."""

    interfaces: dict[str, Interface] = field(default_factory=dict)
    """By address."""
    connections: dict[int, TcpInfo] = field(default_factory=dict)
    """By inode."""


class Connections:
    """Reads the connections of all ranks, and each network namespace once."""

    name, at_once, needs_stacks = "connections", 1, False

    def __init__(self, proc: Proc) -> None:
        self._proc = proc

    def plan(self, ranks: RanksOfRound) -> Sequence[Step]:
        """Return one step for all ranks. A stack sample asks for no connections."""
        return [] if ranks.is_sample else [partial(self._fill, ranks)]

    def _fill(self, ranks: RanksOfRound) -> None:
        packets: dict[str, Packets] = {}
        for tree in ranks.trees:
            pid = tree.process.pid
            namespace = self._proc.link(pid, "ns/net")
            if namespace not in packets:
                packets[namespace] = self._read_packets(pid, namespace)
            sockets = dict(self._read_sockets(pid, ranks.tables.sockets))
            tree.evidence["network"] = make_network(sockets, packets[namespace])

    def _read_sockets(
        self, pid: int, tables: SocketTables
    ) -> Iterator[tuple[int, str | Connection]]:
        for link in islice(self._proc.descriptors(pid), MAX_DESCRIPTORS):
            if link.startswith("socket:["):
                inode = int(link[len("socket:[") : -1])
                found = read_socket(tables.find_tcp(pid, inode) or [])
                if found is not None:
                    yield inode, found

    def _read_packets(self, pid: int, namespace: str) -> Packets:
        read: Callable[[], Packets] = _read_packets
        if namespace == self._proc.link(os.getpid(), "ns/net"):
            return read()
        return in_network_of(self._proc.file(pid, "ns/net"), read) or Packets()


def _read_packets() -> Packets:
    try:
        return Packets(read_interfaces(), {each.inode: each for each in read_tcp()})
    except OSError:
        return Packets()


def make_network(sockets: dict[int, str | Connection], packets: Packets) -> RankNetwork:
    """Return what is sent of a rank's sockets, by their inodes. Those inside of its node are left
    out."""
    troubled: list[Connection] = []
    ports: dict[str, set[int]] = {}
    listening = sorted(each for each in sockets.values() if isinstance(each, str))
    for inode, each in sockets.items():
        if isinstance(each, str) or is_inside(each):
            continue
        address, port = split_port(each.local)
        ports.setdefault(address, set()).add(port)
        if each.tries:
            troubled.append(_measure(each, packets.connections.get(inode)))
    troubled.sort(key=lambda each: (-each.tries, each.local))
    addresses = (_describe(each, ports[each], packets.interfaces) for each in sorted(ports))
    return RankNetwork(
        troubled=tuple(troubled[:MAX_TROUBLED]),
        addresses=tuple(islice(addresses, MAX_ADDRESSES)),
        listening=tuple(listening[:MAX_LISTENING]),
    )


def _measure(connection: Connection, info: TcpInfo | None) -> Connection:
    if info is None:
        return connection
    return replace(
        connection,
        resent=info.resent,
        segment_bytes=info.segment_bytes,
        path_mtu=info.path_mtu,
    )


def _describe(address: str, ports: set[int], interfaces: dict[str, Interface]) -> LocalAddress:
    interface = interfaces.get(address)
    return LocalAddress(
        address=address,
        interface=printable(interface.name, MAX_NAME) if interface else "",
        mtu=interface.mtu if interface else 0,
        ports=tuple(sorted(ports)[:MAX_PORTS]),
    )


def is_inside(connection: Connection) -> bool:
    """Return whether both ends are on the same node."""
    return Ends(split_port(connection.local)[0], split_port(connection.remote)[0]).is_on_one_node
