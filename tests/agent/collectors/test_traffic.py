"""Bytes over TCP: real connections of this process, and of a process in a namespace of its own."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.collectors.traffic import (
    LATE_INTERVALS,
    TcpBytes,
    TrafficMeter,
    parse_connection,
    parse_interfaces,
    read_tcp_bytes,
)
from agent.procfs import Proc
from agent.ranks.process_table import ProcessTable
from tests.agent.agent_scene import wait_until

SIZE = 400_000


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection over loopback."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as peer,
    ):
        yield client, peer


def send(client: socket.socket, peer: socket.socket, size: int) -> None:
    client.setblocking(True)
    left = size
    while left > 0:
        left -= client.send(bytes(min(left, 65536)))
        peer.recv(1 << 20)


def inode_of(connection: socket.socket) -> int:
    return os.fstat(connection.fileno()).st_ino


def test_the_kernel_tells_what_a_connection_has_moved(pair) -> None:
    client, peer = pair
    before = read_tcp_bytes()
    send(client, peer, SIZE)
    after = read_tcp_bytes()
    assert after[inode_of(peer)] - before[inode_of(peer)] >= SIZE // 2
    assert after[inode_of(client)] > before[inode_of(client)]


def meter(interval_s: float) -> TrafficMeter:
    proc = Proc()
    new, _ = ProcessTable(proc).refresh()
    process = next(each for each in new if each.pid == os.getpid())
    return TrafficMeter(proc=proc, process=process, tcp=TcpBytes(), interval_s=interval_s)


def test_a_late_rank_that_transfers_is_found_to(pair) -> None:
    traffic = meter(interval_s=0.6)
    assert traffic.measure(late_s=2.0) == 0.0
    send(*pair, SIZE)
    wait_until(lambda: traffic.measure(late_s=2.7) > 100_000, "the transfer is seen")
    # Other tests of this process may still talk.
    wait_until(lambda: traffic.measure(late_s=4.0) < 100_000, "nothing is sent any more")
    assert traffic.measure(late_s=0.1) == 0.0


def test_a_rank_in_time_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = meter(interval_s=1.0)
    monkeypatch.setattr(TrafficMeter, "_count", lambda *_: pytest.fail("it was checked"))
    assert traffic.measure(LATE_INTERVALS - 0.1) == 0.0


def test_interfaces_but_loopback_are_counted() -> None:
    raw = b"""Inter-|   Receive                            |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo: 999 9 0 0 0 0 0 0 999 9 0 0 0 0 0 0
  eth0: 1000 5 0 0 0 0 0 0 200 5 0 0 0 0 0 0
"""
    assert parse_interfaces(raw) == {-2: 1200}


def message(inode: int, acked: int, received: int) -> bytes:
    info = bytes(120) + struct.pack("=QQ", acked, received) + bytes(40)
    attribute = struct.pack("=HH", 4 + len(info), 2) + info
    return bytes(68) + struct.pack("=I", inode) + attribute


def test_a_message_of_the_kernel_is_read() -> None:
    assert parse_connection(message(77, 5, 7)) == {77: 12}
    assert parse_connection(message(0, 5, 7)) == {}  # a connection that no process holds any more


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_error(raw: bytes) -> None:
    parse_connection(raw)
    parse_interfaces(raw)
    parse_connection(message(1, 2, 3)[:72] + raw)
