"""Fair turns for coroutines at a resource with few places, see `watchtower/service/sharing.py`.

If there are two places, one owner can hold only one. So an owner with many requests waits for its
own requests, and the other place is free for other owners.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from watchtower.service.sharing import FairPlaces, Ticket
from watchtower.tower.clock import Clock


class Turns:
    """A number of places that owners use in turn. Not thread-safe: for one event loop."""

    def __init__(self, places: int, clock: Clock) -> None:
        self._places, self._clock = FairPlaces(places), clock
        self._turns: dict[Ticket, asyncio.Future[None]] = {}

    @contextlib.asynccontextmanager
    async def take(
        self, owner: str, founder: str = "", *, again: bool = False
    ) -> AsyncIterator[None]:
        """Wait for a place and hold it until the end of the block.

        `founder` is the node that reported the owner's job first. `again`: the owner's requests
        without `again` are first.
        """
        ticket = self._places.ask(owner, founder=founder, order=(int(again),))
        turn = self._turns[ticket] = asyncio.get_running_loop().create_future()
        try:
            self._hand_out()
            await turn
            yield
        finally:
            del self._turns[ticket]
            self._places.leave(ticket, self._clock.now())
            self._hand_out()

    def _hand_out(self) -> None:
        for ticket in self._places.hand_out(self._clock.now()):
            turn = self._turns[ticket]
            if not turn.done():  # else its coroutine was cancelled
                turn.set_result(None)
