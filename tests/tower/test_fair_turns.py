"""Messages that wait for the event loop: addresses that used less of its time are first."""

import asyncio
import math
from collections import deque
from heapq import heapify, heappop, heappush

import pytest

from watchtower.api.fair_turns import (
    LONGEST_RETRY_S,
    MAX_ADDRESSES,
    SLICE_BYTES,
    START_BYTES_PER_S,
    FairTurns,
)
from watchtower.api.ingest import LONGEST_DUMP_WAIT_S

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


def test_first_messages_of_nodes_behind_one_address_go_before_second_ones():
    async def story() -> None:
        turns, order = FairTurns(), []

        async def send(node: str) -> None:
            await turns.wait("proxy", SLICE_BYTES, 0.0, node)
            order.append(node)
            turns.charge("proxy", TOOK_S, 0.0)

        await asyncio.gather(*(send(node) for node in ["a", "a", "b", "b", "c"]))
        assert order == ["a", "b", "c", "a", "b"]

    asyncio.run(story())


def storm(turns: FairTurns, nodes: int, size: int, bytes_per_s: float) -> dict[str, list[float]]:
    """Play two rounds of dumps of all nodes at once, on a tower of this speed, without a clock.

    Every node sends its second dump a second after the first. Returns when each was accepted.
    """
    accepted: dict[str, list[float]] = {f"n{number}": [] for number in range(nodes)}
    due = [(0.0, number, node) for number, node in enumerate(accepted)]
    due += [(1.0, nodes + number, node) for number, node in enumerate(accepted)]
    heapify(due)
    handled_until, queue = 0.0, deque[tuple[str, int]]()
    while due:
        at, number, node = heappop(due)
        while queue and handled_until <= at:  # the tower works until this message arrives
            address, order = queue.popleft()
            turns._count(address, order, -size)
            handled_until += size / bytes_per_s
        handled_until = max(handled_until, at if not queue else 0.0)
        again_s = turns.find_appointment(node, size, at, node, LONGEST_DUMP_WAIT_S)
        if again_s is not None:
            heappush(due, (at + math.ceil(again_s), number, node))
            continue
        order = turns._find_order(node, size, at, turns._had_turn(node, node, at))
        turns._note_turn(node, node, at)
        turns._count(node, order, size)
        queue.append((node, order))
        accepted[node].append(handled_until + size * len(queue) / bytes_per_s)
        assert accepted[node][-1] - at < 5.0, "its sender would have given up"
    return accepted


def test_in_a_storm_accepted_messages_are_handled_in_time_and_all_nodes_come_first():
    nodes, size = 512, 30_000
    accepted = storm(FairTurns(), nodes, size, START_BYTES_PER_S / 1.5)
    firsts = [times[0] for times in accepted.values()]
    assert all(len(times) == 2 for times in accepted.values())
    alone_s = nodes * size / (START_BYTES_PER_S / 1.5)
    assert max(firsts) < 2 * alone_s + 1, "refused ones came back when there was room"
    seconds = sorted(times[1] for times in accepted.values())
    assert sum(at < max(firsts) for at in seconds) < nodes / 2


def test_an_address_that_sends_much_gets_no_other_refused():
    async def story() -> None:
        turns, large, small = FairTurns(), 4 << 20, 100_000
        flood = [asyncio.create_task(turns.wait("flood", large, 0.0, f"x{n}")) for n in range(4)]
        await asyncio.sleep(0)
        assert turns._waiting_bytes["flood"] == 3 * large

        def ask(address: str, size: int) -> float | None:
            return turns.find_appointment(address, size, 0.0, f"n of {address}", 2.0)

        assert ask("other", small) is None
        refused = [ask("flood", 4 * large) for _ in range(10)]
        assert None not in refused
        assert ask("other", small) is None
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        assert not turns._bytes_by_order
        assert ask("flood", large) is None, "nothing waits"

    asyncio.run(story())


def test_refused_messages_of_one_address_move_only_its_own_appointments():
    turns, size = FairTurns(), 1 << 20
    turns._count("waiting", 0, 40 << 20)
    first_s = turns.find_appointment("flood", size, 0.0, "x", 2.0)
    again = [turns.find_appointment("flood", size, 0.0, f"x{n}", 2.0) for n in range(100)]
    assert first_s is not None
    assert again[0] is not None
    assert first_s < again[0]
    assert again[-1] == LONGEST_RETRY_S
    other_s = turns.find_appointment("other", size, 0.0, "n", 2.0)
    assert other_s == pytest.approx(first_s + size / START_BYTES_PER_S)


def test_the_known_appointments_are_bounded():
    turns = FairTurns()
    turns._count("waiting", 0, 40 << 20)
    for number in range(MAX_ADDRESSES + 10):
        turns.find_appointment(f"a{number}", 1000, 0.0, "n", 2.0)
    assert len(turns._appointments) == MAX_ADDRESSES
