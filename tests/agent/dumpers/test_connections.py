"""The connections of a rank: those that get no answer, and the addresses of the others."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.dumpers.connections import Connections, Packets, make_network
from agent.dumpers.dumper import Process, RanksOfRound, Target, Tree
from agent.dumpers.kernel_state import KernelTables, read_socket
from agent.netlink import (
    Interface,
    TcpInfo,
    in_network_of,
    parse_address,
    read_interfaces,
    read_tcp,
)
from agent.procfs import Proc
from watchtower.wire.connections import Connection, LocalAddress
from watchtower.wire.dumps import KernelWait

LINE = (
    "   0: 0200000A:A028 0100000A:733C {state} 00010000:00000000 {timer}:00000A1E {tries:08X} "
    " 1000        0 11 2 0000000000000000 {pause} 4 0 1 7"
)


def columns(*, state="01", timer="01", tries=4, pause=320):
    """Return a line of /proc/PID/net/tcp as the kernel writes it, in columns."""
    return LINE.format(state=state, timer=timer, tries=tries, pause=pause).split()


STALLED = Connection(
    local="10.0.0.2:41000",
    remote="10.0.0.1:29500",
    tries=4,
    pause_s=3.2,
    unanswered_bytes=65536,
)


def test_a_connection_that_is_tried_again_is_read_with_its_pause():
    assert read_socket(columns()) == STALLED


@pytest.mark.parametrize("timer", ["00", "02", "04"])
def test_a_full_or_silent_peer_is_not_one_that_gets_nothing(timer):
    found = read_socket(columns(timer=timer))
    assert isinstance(found, Connection)
    assert found.tries == 0


def test_a_listening_socket_is_an_address_and_a_closing_one_is_nothing():
    assert read_socket(columns(state="0A")) == "10.0.0.2:41000"
    assert read_socket(columns(state="06")) is None
    assert read_socket([]) is None


@given(st.lists(st.text(max_size=12), max_size=14))
def test_any_line_is_read_without_an_error(fields):
    read_socket(fields)


def test_only_what_gets_no_answer_is_sent_with_packets_and_the_addresses_of_all():
    sockets = {
        11: STALLED,
        12: Connection(local="10.0.0.2:41001", remote="10.0.0.3:1", tries=0),
        13: Connection(local="127.0.0.1:5", remote="127.0.0.1:6", tries=9),
        14: "0.0.0.0:29500",
    }
    packets = Packets({"10.0.0.2": Interface("eth1", 9000)}, {11: TcpInfo(11, 5, 7, 8948, 9000)})
    network = make_network(sockets, packets)
    (sent,) = network.troubled
    assert (sent.remote, sent.resent, sent.segment_bytes, sent.path_mtu) == (
        "10.0.0.1:29500",
        7,
        8948,
        9000,
    )
    assert network.addresses == (
        LocalAddress(address="10.0.0.2", interface="eth1", mtu=9000, ports=(41000, 41001)),
    )
    assert network.listening == ("0.0.0.0:29500",)


def test_an_agent_that_may_not_enter_a_namespace_sends_the_rest():
    network = make_network({11: STALLED}, Packets())
    assert network.troubled == (STALLED,)
    assert network.addresses == (LocalAddress(address="10.0.0.2", ports=(41000,)),)


def test_the_kernel_is_asked_for_interfaces_and_segments():
    interfaces = read_interfaces()
    assert interfaces["127.0.0.1"].name == "lo"
    assert interfaces["127.0.0.1"].mtu > 1000
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()):
        assert any(each.segment_bytes > 0 for each in read_tcp())


def test_a_namespace_that_does_not_exist_is_not_entered():
    assert in_network_of("/proc/0/ns/net", read_interfaces) is None


@given(st.binary(max_size=100))
def test_any_address_is_read_without_an_error(raw):
    parse_address(raw)


def test_our_own_sockets_are_read():
    proc, pid = Proc(), os.getpid()
    process = Process(pid=pid, owner="", kernel=KernelWait())
    target = Target(rank=0, pid=pid, start_time=1, read_page=lambda: None)
    tree = Tree(target=target, view=None, process=process, children=[])
    ranks = RanksOfRound(
        trees=[tree], owner="", deadline=0.0, tables=KernelTables(proc), is_sample=False
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        (step,) = Connections(proc).plan(ranks)
        step()
        assert f"127.0.0.1:{server.getsockname()[1]}" in tree.evidence["network"].listening
