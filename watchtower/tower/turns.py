"""Turns at something that few can use at once: whoever has used it least is next.

One owner holds one place at a time, so that one who asks for much waits for himself, and a place is
left for others.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from heapq import heappop, heappush

from watchtower.tower.clock import Clock

HALF_LIFE_S = 60.0
"""What an owner has used counts half after this long."""

FORGOTTEN_S = 0.001
"""An owner who has used less than this counts as new."""

MAX_USERS = 4096
"""Owners whose use is remembered; those who used least make room."""


class Turns:
    """A number of places, handed on from owner to owner. Not thread-safe: for one event loop."""

    def __init__(self, places: int, clock: Clock) -> None:
        self._free = places
        self._clock = clock
        self._holders: set[str] = set()
        self._waiting: dict[str, list[tuple[bool, int, asyncio.Future[None]]]] = {}
        """By owner, a heap: first what is asked for the first time, each in the order it came."""
        self._asked = 0
        self._used: dict[str, tuple[float, float]] = {}
        """Seconds that an owner has used, and as of when."""

    @contextlib.asynccontextmanager
    async def take(self, owner: str, *, again: bool = False) -> AsyncIterator[None]:
        """Wait for a place, and hold it for the length of the block.

        `again`: everything that this owner asks for the first time goes before it.
        """
        await self._wait(owner, again)
        began_at = self._clock.now()
        try:
            yield
        finally:
            self._note_use(owner, self._clock.now() - began_at)
            self._give_back(owner)

    async def _wait(self, owner: str, again: bool) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked += 1
        heappush(self._waiting.setdefault(owner, []), (again, self._asked, turn))
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was ours already
                self._give_back(owner)
            raise

    def _give_back(self, owner: str) -> None:
        self._holders.discard(owner)
        self._free += 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._free:
            owners = [owner for owner in self._waiting if owner not in self._holders]
            if not owners:
                return
            owner = min(owners, key=self._use_of)
            turns = self._waiting[owner]
            _, _, turn = heappop(turns)
            if not turns:
                del self._waiting[owner]
            if not turn.done():  # else it was cancelled
                self._free -= 1
                self._holders.add(owner)
                turn.set_result(None)

    def _use_of(self, owner: str) -> float:
        used_s, at = self._used.get(owner, (0.0, 0.0))
        return used_s * math.pow(0.5, (self._clock.now() - at) / HALF_LIFE_S)

    def _note_use(self, owner: str, took_s: float) -> None:
        now = self._clock.now()
        self._used[owner] = (self._use_of(owner) + took_s, now)
        if len(self._used) > MAX_USERS:
            left = {each: self._use_of(each) for each in self._used}
            most = sorted(left, key=left.__getitem__)[-MAX_USERS // 2 :]
            self._used = {each: (left[each], now) for each in most if left[each] > FORGOTTEN_S}
