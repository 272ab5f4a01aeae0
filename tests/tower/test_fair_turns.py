"""Messages that wait for the event loop: addresses that used less of its time are first."""

import asyncio

from watchtower.api.fair_turns import SLICE_BYTES, FairTurns

TOOK_S = 0.01


async def order_of(turns: FairTurns, addresses: list[str], size: int = SLICE_BYTES) -> list[str]:
    """Return the addresses in the order in which their messages had a turn."""
    order: list[str] = []

    async def send(address: str) -> None:
        await turns.wait(address, size, 0.0)
        order.append(address)
        turns.charge(address, TOOK_S, 0.0)

    await asyncio.gather(*(send(address) for address in addresses))
    return order


def waits(turns: FairTurns, address: str, size: int) -> bool:
    waiting = turns.wait(address, size, 0.0)
    try:
        waiting.send(None)
    except StopIteration:
        return False
    waiting.close()
    return True


def test_small_messages_do_not_wait():
    async def story() -> None:
        addresses = [f"a{number}" for number in range(20)]
        turns = FairTurns()
        assert not any(waits(turns, address, SLICE_BYTES // 20) for address in addresses)
        assert waits(turns, "a0", 1)

    asyncio.run(story())


def test_an_address_that_used_little_never_waits():
    async def story() -> None:
        turns = FairTurns(light_s=0.1)
        turns.charge("flood", 0.1, 0.0)
        assert [waits(turns, "flood", SLICE_BYTES) for _ in range(3)] == [False, True, True]
        for _ in range(9):
            assert not waits(turns, "light", SLICE_BYTES)
            turns.charge("light", 0.1 / 8, 0.0)
        assert waits(turns, "light", SLICE_BYTES)

    asyncio.run(story())


def test_the_second_message_of_an_address_waits_for_the_first_of_another():
    assert asyncio.run(order_of(FairTurns(), ["x", "a", "a", "b"])) == ["x", "a", "b", "a"]


def test_messages_of_equal_addresses_keep_their_order():
    assert asyncio.run(order_of(FairTurns(), ["c", "a", "b"])) == ["c", "a", "b"]


def test_an_address_that_used_much_waits_for_those_that_used_little():
    async def story() -> None:
        turns = FairTurns()
        await order_of(turns, ["a"] * 5)
        assert await order_of(turns, ["x", *"aaa", *"bbb"]) == ["x", *"bbb", *"aaa"]

    asyncio.run(story())


def test_a_message_that_arrives_later_goes_before_the_waiting_ones_of_a_flood():
    async def story() -> None:
        turns, order = FairTurns(), []

        async def send(address: str) -> None:
            await turns.wait(address, SLICE_BYTES, 0.0)
            order.append(address)
            turns.charge(address, TOOK_S, 0.0)

        flood = [asyncio.create_task(send("flood")) for _ in range(50)]
        while len(order) < 5:
            await asyncio.sleep(0)
        late = asyncio.create_task(send("late"))
        await asyncio.gather(*flood, late)
        assert order.index("late") < 10
        assert not turns._waiting_bytes

    asyncio.run(story())


def test_a_client_that_disconnects_gives_up_its_turn():
    async def story() -> None:
        turns, order = FairTurns(), []

        async def send(address: str) -> None:
            await turns.wait(address, SLICE_BYTES, 0.0)
            order.append(address)

        tasks = [asyncio.create_task(send(address)) for address in "abc"]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == ["a", "c"]

    asyncio.run(story())
