"""Turns: the owner that used least is next, and no owner has two places."""

import asyncio
from dataclasses import dataclass

import pytest

from watchtower.service.sharing import HALF_LIFE_S
from watchtower.tower.clock import Clock
from watchtower.tower.turns import Turns


@dataclass(frozen=True)
class HandClock(Clock):
    at: list[float]

    def now(self) -> float:
        return self.at[0]


class Scene:
    """Work that takes imagined time, in some places."""

    def __init__(self, places: int) -> None:
        self.clock = HandClock([0.0])
        self.turns = Turns(places, self.clock)
        self.served: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.inside: list[str] = []
        self.most: dict[str, int] = {}

    async def ask(
        self, owner: str, takes_s: float = 1.0, again: bool = False
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(self._work(owner, takes_s, again))
        self.tasks.append(task)
        await asyncio.sleep(0)
        return task

    async def done(self) -> list[str]:
        await asyncio.gather(*self.tasks)
        return self.served

    async def _work(self, owner: str, takes_s: float, again: bool) -> None:
        async with self.turns.take(owner, again=again):
            self.served.append(owner.upper() if again else owner)
            self.inside.append(owner)
            for name in {"", owner}:
                count = sum(1 for each in self.inside if name in ("", each))
                self.most[name] = max(self.most.get(name, 0), count)
            for _ in range(5):
                await asyncio.sleep(0)
            self.clock.at[0] += takes_s
            self.inside.remove(owner)


def tell(story) -> None:
    asyncio.run(asyncio.wait_for(story(), 30))


def test_the_owner_that_used_least_is_next():
    async def story() -> None:
        scene = Scene(1)
        for owner in "aaaabc":
            await scene.ask(owner)
        assert await scene.done() == ["a", "b", "c", "a", "a", "a"]

    tell(story)


def test_an_owner_that_takes_long_waits_for_owners_that_take_little():
    async def story() -> None:
        scene = Scene(1)
        await scene.ask("a", 2.0)
        for _ in range(3):
            await scene.ask("a", 2.0)
            await scene.ask("b", 0.1)
        assert await scene.done() == ["a", "b", "b", "b", "a", "a", "a"]

    tell(story)


def test_the_first_request_of_an_owner_goes_before_its_repeated_ones():
    async def story() -> None:
        scene = Scene(1)
        await scene.ask("a")
        await scene.ask("b", again=True)
        for again in (True, True, False):
            await scene.ask("a", again=again)
        assert await scene.done() == ["a", "B", "a", "A", "A"]

    tell(story)


def test_an_owner_holds_one_place_and_leaves_the_other_to_others():
    async def story() -> None:
        scene = Scene(2)
        for _ in range(4):
            await scene.ask("a")
        await scene.ask("b")
        assert scene.served == ["a", "b"]
        for owner in "cdabcd":
            await scene.ask(owner)
        await scene.done()
        assert scene.most[""] == 2
        assert {scene.most[owner] for owner in "abcd"} == {1}

    tell(story)


def test_use_of_long_ago_counts_little():
    async def story() -> None:
        scene = Scene(1)
        await scene.ask("a", 8.0)
        await scene.done()
        scene.clock.at[0] += 4 * HALF_LIFE_S
        await scene.ask("b", 1.0)
        await scene.ask("a")
        await scene.ask("b")
        assert await scene.done() == ["a", "b", "a", "b"]

    tell(story)


def test_a_cancelled_request_passes_the_turn_on():
    async def story() -> None:
        scene = Scene(1)
        first, waits, got_it, last = [await scene.ask(owner) for owner in "abcd"]
        waits.cancel()
        await first
        got_it.cancel()
        await last
        assert scene.served in (["a", "c", "d"], ["a", "d"])
        for task in (waits, got_it):
            with pytest.raises(asyncio.CancelledError):
                await task

    tell(story)


def test_an_error_passes_the_turn_on():
    async def story() -> None:
        turns = Turns(1, HandClock([0.0]))
        with pytest.raises(ZeroDivisionError):
            async with turns.take("a"):
                _ = 1 // 0
        async with turns.take("b"):
            pass

    tell(story)
