"""What the kernel says about TCP connections and addresses over netlink.

It reports the bytes, segments and path of every TCP connection to every user (sock_diag(7), `ss
-ti`). No file under /proc has them. It answers for one network namespace, which is ours unless a
thread has entered another one. One request returns all connections.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import NamedTuple, TypeVar

NETLINK_ROUTE, NETLINK_SOCK_DIAG = 0, 4
SOCK_DIAG_BY_FAMILY, RTM_GETADDR = 20, 22
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
INET_DIAG_INFO = 2
IFA_ADDRESS, IFA_LOCAL = 1, 2
SIOCGIFMTU = 0x8921
CLONE_NEWNET = 0x40000000
MOVING_STATES = (1 << 1) | (1 << 4) | (1 << 5) | (1 << 8)
"""Established, both waits of a closing end, and close-wait: states in which bytes can still
move.
"""

DEADLINE_S = 0.5
"""Seconds to wait. The kernel answers in 1 ms per thousand connections."""

MAX_CONNECTIONS = 65_536
"""Connections read in one request. On a node with more, the others are not counted."""

MAX_INTERFACE_ADDRESSES = 1024
"""Addresses read of one namespace. A node has a dozen, and one for each of its containers."""

_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48s")
_INODE_AT, _ATTRIBUTES_AT = 68, 72
"""Offsets in struct inet_diag_msg (linux/inet_diag.h)."""
_SEGMENT_AT, _PATH_MTU_AT, _RESENT_AT, _BYTES_AT = 16, 60, 100, 120
"""Offsets of snd_mss, pmtu, total_retrans, and bytes_acked with bytes_received, in struct tcp_info
(linux/tcp.h, since Linux 4.1)."""
_ADDRESS = struct.Struct("=BBBBI")
"""struct ifaddrmsg: family, length of the prefix, flags, scope and index of the interface."""
_INTERFACE = struct.Struct("16sI20x")
"""struct ifreq, with the MTU."""

_Result = TypeVar("_Result")


class TcpInfo(NamedTuple):
    """What the kernel knows of one connection."""

    inode: int
    moved_bytes: int
    """Received, plus sent and acknowledged."""
    resent: int
    """Segments that were sent again."""
    segment_bytes: int
    path_mtu: int


class Interface(NamedTuple):
    """A network interface."""

    name: str
    mtu: int


def read_tcp() -> Iterator[TcpInfo]:
    """Yield all TCP connections of this namespace. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(DEADLINE_S)
        left = MAX_CONNECTIONS
        for family in (socket.AF_INET, socket.AF_INET6):
            wanted = 1 << (INET_DIAG_INFO - 1)
            body = _REQUEST.pack(family, socket.IPPROTO_TCP, wanted, MOVING_STATES, bytes(48))
            for answer in _ask(netlink, SOCK_DIAG_BY_FAMILY, body):
                found = parse_connection(answer)
                if found is not None and left:
                    left -= 1
                    yield found


def read_interfaces() -> dict[str, Interface]:
    """Return the interfaces of this namespace by each of their addresses. Raises OSError."""
    found: dict[str, int] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_ROUTE) as netlink:
        netlink.settimeout(DEADLINE_S)
        for answer in _ask(netlink, RTM_GETADDR, _ADDRESS.pack(0, 0, 0, 0, 0)):
            if (pair := parse_address(answer)) and len(found) < MAX_INTERFACE_ADDRESSES:
                found.setdefault(*pair)
    interfaces = {index: _find_interface(index) for index in set(found.values())}
    return {address: interfaces[index] for address, index in found.items()}


def in_network_of(path: str, read: Callable[[], _Result]) -> _Result | None:
    """Return what `read` returns in the network namespace of this path; None if that is forbidden.

    A thread of its own enters it, because a thread cannot leave one that it may not enter again.
    """
    results: list[_Result] = []

    def work() -> None:
        try:
            with open(path, "rb") as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) == 0:
                    results.append(read())
        except OSError:
            return

    thread = threading.Thread(target=work, name="netns", daemon=True)
    thread.start()
    thread.join(4 * DEADLINE_S)
    return results[0] if results else None


def _find_interface(index: int) -> Interface:
    name = socket.if_indextoname(index)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = _INTERFACE.pack(os.fsencode(name), 0)
        _, mtu = _INTERFACE.unpack(fcntl.ioctl(any_socket.fileno(), SIOCGIFMTU, asked))
    return Interface(name, mtu)


def _ask(netlink: socket.socket, kind: int, body: bytes) -> Iterator[bytes]:
    length = _HEADER.size + len(body)
    netlink.send(_HEADER.pack(length, kind, NLM_F_REQUEST | NLM_F_DUMP, 1, 0) + body)
    while True:
        data = netlink.recv(1 << 18)
        at = 0
        while at + _HEADER.size <= len(data):
            length, answered, _, _, _ = _HEADER.unpack_from(data, at)
            if answered in (NLMSG_DONE, NLMSG_ERROR) or length < _HEADER.size:
                return
            yield data[at + _HEADER.size : at + length]
            at += (length + 3) & ~3


def parse_connection(body: bytes) -> TcpInfo | None:
    """Return one struct inet_diag_msg; None without an inode or byte counts."""
    if len(body) < _ATTRIBUTES_AT:
        return None
    (inode,) = struct.unpack_from("=I", body, _INODE_AT)
    for kind, info in _attributes(body, _ATTRIBUTES_AT):
        if kind == INET_DIAG_INFO and len(info) >= _BYTES_AT + 16:
            acked, received = struct.unpack_from("=QQ", info, _BYTES_AT)
            (segment,) = struct.unpack_from("=I", info, _SEGMENT_AT)
            (path_mtu,) = struct.unpack_from("=I", info, _PATH_MTU_AT)
            (resent,) = struct.unpack_from("=I", info, _RESENT_AT)
            return TcpInfo(inode, acked + received, resent, segment, path_mtu) if inode else None
    return None


def parse_address(body: bytes) -> tuple[str, int] | None:
    """Return the address of one struct ifaddrmsg, and the index of its interface."""
    if len(body) < _ADDRESS.size:
        return None
    *_, index = _ADDRESS.unpack_from(body)
    found = dict(_attributes(body, _ADDRESS.size))
    raw = found.get(IFA_LOCAL) or found.get(IFA_ADDRESS) or b""
    return (str(ip_address(raw)), index) if len(raw) in (4, 16) else None


def _attributes(body: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, at)
        if length < 4:
            return
        yield kind, body[at + 4 : at + length]
        at += (length + 3) & ~3
