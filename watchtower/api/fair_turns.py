"""Turns of the event loop for the messages of agents: the address that used least time is first.

A valid message may be large: a report of 1,024 ranks takes as long as a hundred usual ones. If the
loop handled all that have arrived, every other message would wait for them. Here an address with
little use need not wait. Only a few messages of the others are handled before the loop reads from
the network again, and the address with less use goes first.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter

from watchtower.fair_places import FairUse

SLICE_BYTES = 160 * 1024
"""Bytes of messages that are handled in one turn: 16 batches of dumps of eight ranks, 32 reports,
or one of the largest messages. They take about 10 ms. With one batch per turn, each would wait for
the threads that hold the interpreter: 4,096 batches took 15 s."""

S_PER_BYTE = 1e-7
"""Seconds that handling a byte takes. An address with several waiting messages is charged for them
before they are handled."""


class FairTurns:
    """Handles messages of one kind within a slice of each turn. Not thread-safe."""

    def __init__(self, light_s: float = 0.0) -> None:
        """An address that used less than `light_s` seconds never waits."""
        self._light_s = light_s
        self._use = FairUse()
        self._waiting: list[tuple[float, int, int, asyncio.Future[None]]] = []
        """Order, number, bytes and turn of each waiting message, as a heap."""
        self._waiting_bytes: Counter[str] = Counter()
        self._numbers = itertools.count()
        self._left = SLICE_BYTES
        """Bytes that may still be handled in this turn."""
        self._task: asyncio.Task[None] | None = None

    async def wait(self, address: str, size: int, now: float) -> None:
        """Wait for the turn of a message. The turn lasts until the caller's next `await`."""
        used_s, _ = self._use.of(address, "", now)
        if used_s < self._light_s:
            return
        if self._left > 0 and not self._waiting:
            self._begin_slice(size)
            return
        order = used_s + S_PER_BYTE * self._waiting_bytes[address]
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (order, next(self._numbers), size, turn))
        self._waiting_bytes[address] += size
        if self._task is None:
            self._task = asyncio.create_task(self._grant_turns())
        try:
            await turn
        finally:
            self._waiting_bytes[address] -= size
            if not self._waiting_bytes[address]:
                del self._waiting_bytes[address]

    def charge(self, address: str, took_s: float, now: float) -> None:
        """Record the time that handling a message of an address took."""
        self._use.note(address, "", took_s, now)

    def _begin_slice(self, size: int) -> None:
        if self._left == SLICE_BYTES:
            asyncio.get_running_loop().call_soon(self._end_slice)
        self._left -= size

    def _end_slice(self) -> None:
        self._left = SLICE_BYTES

    async def _grant_turns(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # messages that have just arrived join the waiting ones
            await asyncio.sleep(0)
            left = SLICE_BYTES
            while self._waiting and left > 0:
                _, _, size, turn = heapq.heappop(self._waiting)
                if not turn.done():  # else its client has disconnected
                    turn.set_result(None)
                    left -= size
        self._task = None
