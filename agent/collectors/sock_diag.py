"""Bytes that each TCP connection of this network namespace has moved, by the inode of its socket.

The kernel reports them to every user over netlink (sock_diag(7), `ss -ti`). No file under /proc has
them: /proc/PID/io does not count sockets. One request returns all connections.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
INET_DIAG_INFO = 2
MOVING_STATES = (1 << 1) | (1 << 4) | (1 << 5) | (1 << 8)
"""Established, both waits of a closing end, and close-wait: states in which bytes can still
move.
"""

DEADLINE_S = 0.5
"""Seconds to wait. The kernel answers in 1 ms per thousand connections."""

MAX_CONNECTIONS = 65_536
"""Connections read in one request. On a node with more, the others are not counted."""

_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48s")
_INODE_AT, _ATTRIBUTES_AT = 68, 72
"""Offsets in struct inet_diag_msg (linux/inet_diag.h)."""
_BYTES_AT = 120
"""Offset of bytes_acked and bytes_received in struct tcp_info (linux/tcp.h, since Linux 4.1)."""


def read_tcp_bytes() -> dict[int, int]:
    """Return bytes received plus bytes sent and acknowledged, by socket inode. Raises OSError."""
    moved: dict[int, int] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(DEADLINE_S)
        for family in (socket.AF_INET, socket.AF_INET6):
            _ask(netlink, family)
            for body in _answers(netlink):
                if len(moved) < MAX_CONNECTIONS:
                    moved.update(parse_connection(body))
    return moved


def _ask(netlink: socket.socket, family: int) -> None:
    body = _REQUEST.pack(
        family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), MOVING_STATES, bytes(48)
    )
    length = _HEADER.size + len(body)
    header = _HEADER.pack(length, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, family, 0)
    netlink.send(header + body)


def _answers(netlink: socket.socket) -> Iterator[bytes]:
    while True:
        data = netlink.recv(1 << 18)
        at = 0
        while at + _HEADER.size <= len(data):
            length, kind, _, _, _ = _HEADER.unpack_from(data, at)
            if kind in (NLMSG_DONE, NLMSG_ERROR) or length < _HEADER.size:
                return
            yield data[at + _HEADER.size : at + length]
            at += (length + 3) & ~3


def parse_connection(body: bytes) -> dict[int, int]:
    """Return the bytes of one struct inet_diag_msg by inode; empty if it has no byte counts."""
    if len(body) < _ATTRIBUTES_AT:
        return {}
    (inode,) = struct.unpack_from("=I", body, _INODE_AT)
    at = _ATTRIBUTES_AT
    while at + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, at)
        if length < 4:
            return {}
        info = body[at + 4 : at + length]
        if kind == INET_DIAG_INFO and len(info) >= _BYTES_AT + 16:
            acked, received = struct.unpack_from("=QQ", info, _BYTES_AT)
            return {inode: acked + received} if inode else {}
        at += (length + 3) & ~3
    return {}
