"""Several addresses together leave connections and memory for bodies to every other address."""

from __future__ import annotations

from watchtower.api.allowances import MAX_HELD_REPORTS_BYTES, HeldBytes
from watchtower.api.connections import ConnectionLimit

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
