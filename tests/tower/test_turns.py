"""Turns: one at a time, and nobody waits for more than one turn of each other owner."""

import asyncio

import pytest

from watchtower.tower.turns import Turns


def tell(story) -> None:
    asyncio.run(asyncio.wait_for(story(), 30))


def test_owners_take_turns_and_each_ones_own_are_in_order():
    async def story() -> None:
        turns, served = Turns(), []

        async def work(owner: str, number: int) -> None:
            async with turns.take(owner):
                served.append(f"{owner}{number}")
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(work("a", number)) for number in range(4)]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(work(owner, 0)) for owner in "bc"]
        await asyncio.gather(*tasks)
        assert served == ["a0", "a1", "b0", "c0", "a2", "a3"]

    tell(story)


def test_only_one_at_a_time_has_a_turn():
    async def story() -> None:
        turns, inside, most = Turns(), 0, 0

        async def work(owner: str) -> None:
            nonlocal inside, most
            async with turns.take(owner):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(work(f"o{number % 3}") for number in range(30)))
        assert most == 1

    tell(story)


def test_whoever_is_cancelled_hands_the_turn_on():
    async def story() -> None:
        turns, served = Turns(), []

        async def work(name: str) -> None:
            async with turns.take(name):
                served.append(name)
                await asyncio.sleep(0.01)

        first, waits, got_it, last = (asyncio.create_task(work(name)) for name in "abcd")
        await asyncio.sleep(0)
        waits.cancel()
        await first
        got_it.cancel()  # its turn has been handed to it, and it has not run since
        await last
        assert served in (["a", "c", "d"], ["a", "d"])
        for task in (waits, got_it):
            with pytest.raises(asyncio.CancelledError):
                await task

    tell(story)


def test_an_error_inside_hands_the_turn_on():
    async def story() -> None:
        turns = Turns()
        with pytest.raises(ZeroDivisionError):
            async with turns.take("a"):
                _ = 1 // 0
        async with turns.take("b"):
            pass

    tell(story)
