"""What is read of a rank's process with every report: CPU time, bytes, its end, its traffic."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watchtower_heartbeat.layout import PAGE_SIZE
from watchtower_heartbeat.page import PageView, decode
from watchtower_heartbeat.writer import PageWriter, blank_image

from agent.collectors import traffic
from agent.collectors.endings import ExitStatus, decode_wait_status
from agent.collectors.process import (
    Counters,
    parse_io,
    rates_between,
)
from agent.collectors.traffic import (
    LATE_INTERVALS,
    MAX_LINKS,
    TREE_PROCESSES,
    TcpBytes,
    TrafficMeter,
    parse_interfaces,
    read_tcp_bytes,
)
from agent.netlink import TcpInfo, parse_connection
from agent.procfs import Proc
from agent.ranks.process_table import Process, ProcessTable
from agent.watching.rank import make_ending
from tests.waiting import wait_until
from watchtower.wire.report import EndingKind, Movement


def test_rates_are_differences_over_time() -> None:
    before = Counters(at=10.0, cpu_s=1.0, read_bytes=0, write_bytes=100)
    after = Counters(at=12.0, cpu_s=2.0, read_bytes=50, write_bytes=100)
    assert rates_between(before, after) == Movement(cpu_cores=0.5, read_bytes_per_s=25.0)


def test_bytes_that_may_not_be_read_are_said_to_be_unknown() -> None:
    closed = Counters(at=12.0, cpu_s=2.0, read_bytes=None, write_bytes=None)
    before = Counters(at=10.0, cpu_s=1.0, read_bytes=None, write_bytes=None)
    assert not rates_between(before, closed).io_readable


def test_bytes_are_read_from_their_lines() -> None:
    lines = [b"rchar: 1", b"wchar: 2", b"syscr: 3", b"syscw: 4"]
    lines += [b"read_bytes: 50", b"write_bytes: 60"]
    assert parse_io(b"\n".join([*lines, b"cancelled_write_bytes: 0", b""])) == (50, 60)
    with pytest.raises(ValueError, match="proc"):
        parse_io(b"\n".join(lines[1:]))


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (0, EndingKind.EXIT, 0),
        (3 << 8, EndingKind.EXIT, 3),
        (9, EndingKind.SIGNAL, 9),
        (11 | 0x80, EndingKind.SIGNAL, 11),  # with a core dump
    ],
)
def test_a_wait_status_is_decoded(status: int, kind: EndingKind, code: int) -> None:
    assert decode_wait_status(status) == ExitStatus(kind=kind, code=code)


def a_page(**fields: int | str) -> PageView:
    image = bytearray(blank_image())
    assert len(image) == PAGE_SIZE
    PageWriter(image).write(**fields)
    return decode(bytes(image))


UNKNOWN = ExitStatus(kind=EndingKind.UNKNOWN)


def test_no_status_and_no_page_is_unknown_and_never_exit_0() -> None:
    assert make_ending(UNKNOWN, None, age_s=0).kind is EndingKind.UNKNOWN
    assert make_ending(UNKNOWN, None, age_s=0).code is None


def test_an_orderly_shutdown_on_the_page_does_not_say_which_code() -> None:
    ended = make_ending(UNKNOWN, a_page(ended=1, ended_ns=5), age_s=0)
    assert (ended.kind, ended.code) == (EndingKind.EXIT, None)


def test_the_kernel_knows_better_than_the_page() -> None:
    status = ExitStatus(kind=EndingKind.SIGNAL, code=15)
    page = a_page(ended=2, ended_ns=5, exception_type="E", exception_message="m")
    ended = make_ending(status, page, age_s=0)
    assert (ended.kind, ended.code, ended.exception_type) == (EndingKind.SIGNAL, 15, "E")


@pytest.mark.parametrize(
    ("ended_ns", "before_s"), [(10**9, 4.0), (6 * 10**9, 0.0), (5 * 10**9, 0.0)]
)
def test_only_a_believable_time_of_an_exception_counts(ended_ns: int, before_s: float) -> None:
    page = a_page(ended=2, ended_ns=ended_ns, exception_type="E")
    ended = make_ending(UNKNOWN, page, age_s=1, ended_at_s=5.0)
    assert ended.raised_before_s == before_s


def test_the_lines_of_a_message_become_one_line() -> None:
    page = a_page(ended=2, ended_ns=5, exception_type="E", exception_message="a\n\n b\nc")
    assert make_ending(UNKNOWN, page, age_s=0).exception_text == "a | b | c"


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
    path = bytes(16) + struct.pack("=I", 1448) + bytes(40) + struct.pack("=I", 1500)
    resent = bytes(36) + struct.pack("=I", 3) + bytes(16)
    info = path + resent + struct.pack("=QQ", acked, received) + bytes(40)
    attribute = struct.pack("=HH", 4 + len(info), 2) + info
    return bytes(68) + struct.pack("=I", inode) + attribute


def test_a_message_of_the_kernel_is_read() -> None:
    assert parse_connection(message(77, 5, 7)) == TcpInfo(77, 12, 3, 1448, 1500)
    assert parse_connection(message(0, 5, 7)) is None  # a connection that no process holds any more


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_error(raw: bytes) -> None:
    parse_connection(raw)
    parse_interfaces(raw)
    parse_connection(message(1, 2, 3)[:72] + raw)


class Endless:
    """A folder of descriptors, or a list of descendants, without an end."""

    def __init__(self) -> None:
        self.read = 0

    def entries(self) -> Iterator[SimpleNamespace]:
        for number in count():
            self.read += 1
            assert self.read <= 2 * MAX_LINKS, "it is read without a limit"
            yield SimpleNamespace(name=str(number))


class Links(Proc):
    def link(self, pid: int, name: str) -> str:
        return "net:[1]" if name == "ns/net" else "socket:[7]"


def endless_meter(process: Process) -> TrafficMeter:
    return TrafficMeter(proc=Links(), process=process, tcp=TcpBytes(), interval_s=1.0)


def a_process(pid: int = 1) -> Process:
    return Process(pid=pid, ppid=0, start_time=1, comm="x")


def test_only_the_first_descriptors_of_a_process_are_read(monkeypatch):
    folder = Endless()

    @contextlib.contextmanager
    def scan(_: str) -> Iterator[Iterator[SimpleNamespace]]:
        yield folder.entries()

    monkeypatch.setattr(os, "scandir", scan)
    monkeypatch.setattr(os, "listdir", lambda _: [each.name for each in folder.entries()])
    monkeypatch.setattr(traffic, "read_tcp_bytes", lambda: {7: 5})
    traffic_meter = endless_meter(a_process())
    assert traffic_meter.measure(late_s=10.0) == 0.0
    assert folder.read <= MAX_LINKS + 1


def test_only_the_first_descendants_of_a_process_are_visited(monkeypatch):
    visited = Endless()

    class Forking(Process):
        def descendants(self) -> Iterator[Process]:
            return (a_process(2) for _ in visited.entries())

    monkeypatch.setattr(traffic, "read_tcp_bytes", dict)
    root = Forking(pid=1, ppid=0, start_time=1, comm="x")
    monkeypatch.setattr(os, "scandir", lambda _: contextlib.nullcontext(iter(())))
    monkeypatch.setattr(os, "listdir", lambda _: [])
    endless_meter(root).measure(late_s=10.0)
    assert visited.read < TREE_PROCESSES
