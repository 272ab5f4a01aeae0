"""Batches of dumps that wait for the tower: addresses that have sent fewer are first."""

import asyncio

from watchtower.api.ingest import PAUSE_S, ReportsFirst


async def order_of(turns: ReportsFirst, addresses: list[str], now: float) -> list[str]:
    """Return the addresses in the order in which their batches had a turn."""
    order: list[str] = []

    async def send(address: str) -> None:
        await turns.wait(address, now)
        order.append(address)

    await asyncio.gather(*(send(address) for address in addresses))
    return order


def test_the_second_batch_of_an_address_waits_for_the_first_of_another():
    assert asyncio.run(order_of(ReportsFirst(), ["a", "a", "b"], 0.0)) == ["a", "b", "a"]


def test_batches_of_equal_addresses_keep_their_order():
    assert asyncio.run(order_of(ReportsFirst(), ["c", "a", "b"], 0.0)) == ["c", "a", "b"]


def test_after_a_pause_all_addresses_are_equal():
    async def story() -> None:
        turns = ReportsFirst()
        await order_of(turns, ["a", "a"], 0.0)
        assert await order_of(turns, ["a", "b"], 1.0) == ["b", "a"]
        assert await order_of(turns, ["a", "b"], 1.1 + PAUSE_S) == ["a", "b"]

    asyncio.run(story())
