"""Several addresses together leave connections and memory for bodies to every other address."""

from __future__ import annotations

from watchtower.api.allowances import MAX_HELD_REPORTS_BYTES, HeldBytes, share_of
from watchtower.api.connections import ConnectionLimit
from watchtower.api.security import client_of

ATTACKERS = tuple(f"10.0.0.{number}" for number in range(8))
PIECE = 65_536
"""Bytes that a connection delivers at once."""


def test_bodies_of_several_addresses_leave_memory_for_the_reports_of_others():
    held, honest = HeldBytes(MAX_HELD_REPORTS_BYTES), 5_000
    for address in ATTACKERS:
        while held.take(address, PIECE):
            pass
    assert held.take("10.0.1.1", honest)
    held.give_back("10.0.1.1", honest)
    assert held.take("10.0.1.2", honest)


def test_a_body_counts_as_much_in_one_piece_as_in_many():
    whole, pieces = HeldBytes(1000), HeldBytes(1000)
    assert whole.take("a", 500)
    assert all(pieces.take("a", 1) for _ in range(500))
    for held in (whole, pieces):
        assert not held.take("a", 1)
        assert held.take("b", 250)
        assert not held.take("b", 1)


def test_connections_of_several_addresses_leave_some_for_others():
    limit = ConnectionLimit(4000, lambda _: None)
    for address in ATTACKERS:
        while limit.enter(address):
            pass
    assert limit.enter("10.0.1.1")
    assert limit.enter("10.0.1.2")


def test_the_addresses_of_an_ipv6_network_are_one():
    first, last, other = "2001:db8:0:1::1", "2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:2::1"
    assert share_of(first) == share_of(last) == "2001:db8:0:1::/64"
    assert share_of(other) == "2001:db8:0:2::/64"
    assert client_of({"client": (first, 40_000)}) == client_of({"client": (last, 40_001)})


def test_other_addresses_are_themselves():
    for address in ("10.0.0.1", "::1", "fe80::1%eth0", "fe80::2", "local", "testclient"):
        assert share_of(address) == address
    assert share_of("::ffff:10.0.0.1") == "10.0.0.1"
