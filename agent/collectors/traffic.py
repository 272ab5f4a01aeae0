"""Collector: bytes that a rank's process tree moves through the network.

A rank that downloads weights or uploads a checkpoint uses hardly any CPU and no disk, so without
this it would seem stopped. Each measurement reads every descriptor. Therefore only two kinds of
ranks are measured, and seldom: late ranks, and ranks without a page, which may be late.

The kernel reports the bytes of every TCP connection to every user over netlink (sock_diag(7),
`ss -ti`). No file under /proc has them: /proc/PID/io does not count sockets. One request returns
all connections.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from agent.procfs import Proc
from agent.ranks.process_table import Process
from watchtower.wire.bounds import MAX_RATE

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


LATE_INTERVALS = 3
"""A rank is measured after this many reports without a heartbeat. Steps are usually shorter."""

MAX_PAUSE_INTERVALS = 10
"""Measurements of one rank are 1, 2, 4 ... and at most this many reports apart. A transfer is found
in time, and a job that hangs for a night costs 0.1 % of a core.
"""

TREE_PROCESSES = 17
"""The rank and sixteen descendants. Uploads and downloads run in one of the first ones."""

MAX_LINKS = 2000
"""Descriptors of one tree read in one measurement, at 5 us each."""


class TcpBytes:
    """The bytes of all connections, read once for all ranks of a tick."""

    def __init__(self) -> None:
        self._read_at = float("-inf")
        self._moved: dict[int, int] = {}

    def at(self, now: float) -> dict[int, int]:
        """Return the bytes by inode, at most half a second old; empty if they cannot be read."""
        if now - self._read_at > 0.5:
            self._read_at = now
            try:
                self._moved = read_tcp_bytes()
            except OSError:
                self._moved = {}
        return self._moved


@dataclass(slots=True, kw_only=True)
class TrafficMeter:
    """One rank's traffic; 0 until it was late at two measurements."""

    proc: Proc
    process: Process
    tcp: TcpBytes
    interval_s: float
    """Seconds between two reports."""
    bytes_per_s: float = 0.0
    _measured_at: float | None = None
    _pause_s: float = 0.0
    _before: dict[int, int] = field(default_factory=dict)
    """Bytes by inode, or by interface (negative) in a network namespace of its own."""

    def measure(self, late_s: float) -> float:
        """Return bytes per second of a rank without a heartbeat for `late_s` seconds."""
        if late_s < LATE_INTERVALS * self.interval_s:
            self.bytes_per_s, self._before, self._measured_at = 0.0, {}, None
            return 0.0
        now = time.monotonic()
        if self._measured_at is None:
            self._before, self._measured_at, self._pause_s = self._count(now), now, self.interval_s
        elif now - self._measured_at >= self._pause_s:
            self._measure(now, now - self._measured_at)
        return self.bytes_per_s

    def _measure(self, now: float, elapsed: float) -> None:
        moved = self._count(now)
        # A new connection has moved all its bytes since the last measurement.
        gained = sum(max(0, n - self._before.get(key, 0)) for key, n in moved.items())
        self.bytes_per_s = min(round(gained / elapsed), MAX_RATE)
        self._before, self._measured_at = moved, now
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_INTERVALS * self.interval_s)

    def _count(self, now: float) -> dict[int, int]:
        own = self.proc.link(os.getpid(), "ns/net")
        theirs = self.proc.link(self.process.pid, "ns/net")
        if theirs and theirs != own:
            return parse_interfaces(self.proc.try_read(self.process.pid, "net/dev", 65536))
        tree = [self.process, *islice(self.process.descendants(), TREE_PROCESSES - 1)]
        moved = self.tcp.at(now)
        links = islice(
            (link for each in tree for link in self.proc.descriptors(each.pid)), MAX_LINKS
        )
        inodes = {int(link[8:-1]) for link in links if link.startswith("socket:[")}
        return {inode: moved[inode] for inode in inodes & moved.keys()}


def parse_interfaces(raw: bytes) -> dict[int, int]:
    """Return bytes in and out of each interface in /proc/PID/net/dev, by place, without
    loopback.
    """
    moved: dict[int, int] = {}
    for place, line in enumerate(raw.split(b"\n")[2:], start=1):
        name, colon, numbers = line.partition(b":")
        fields = numbers.split()
        if colon and name.strip() != b"lo" and len(fields) > 8:
            moved[-place] = int(fields[0]) + int(fields[8])
    return moved
