"""Collector: bytes that a rank's process tree moves through the network.

A rank that downloads weights or uploads a checkpoint uses hardly any CPU and no disk, so without
this it would seem stopped. Each measurement reads every descriptor. Therefore only two kinds of
ranks are measured, and seldom: late ranks, and ranks without a page, which may be late.

The bytes of all connections come from the kernel in one request (`agent/netlink.py`):
/proc/PID/io does not count sockets.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from itertools import islice

from agent.netlink import read_tcp
from agent.procfs import Proc
from agent.ranks.process_table import Process
from watchtower.wire.bounds import MAX_RATE

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


def read_tcp_bytes() -> dict[int, int]:
    """Return bytes received plus bytes sent and acknowledged, by socket inode. Raises OSError."""
    return {each.inode: each.moved_bytes for each in read_tcp()}


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
