"""Turns of the event loop for the messages of agents: the address that used least time is first.

A valid message may be large: a report of 1,024 ranks takes as long as a hundred usual ones. If the
loop handled all that have arrived, every other message would wait for them. Here an address with
little use need not wait. Only a few messages of the others are handled before the loop reads from
the network again, and the address with less use goes first.

Dumps have a queue that is never longer than their senders wait. A message that would wait longer is
refused with an appointment, so that those that are accepted are handled in time. The first message
of a node goes before second ones: a stall is diagnosed when every rank was dumped once.
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


AGAIN_S = 4.0
"""A node that had a turn within `RECENT_S` waits as if its address had used this many seconds more:
longer than the first dumps of all nodes of a large job take. More would let an address that invents
nodes delay the second dumps of others."""

RECENT_S = 30.0
MAX_NODES = 65_536
"""Nodes whose last turn is known."""

START_BYTES_PER_S = 4e6
"""Bytes per second that are handled, until it is measured: half of a slow core."""

MEASURED_SHARE = 0.1
"""Weight of the latest slice in the measured speed."""

LONGEST_RETRY_S = 30.0


class FairTurns:
    """Handles messages of one kind within a slice of each turn. Not thread-safe."""

    def __init__(self, light_s: float = 0.0) -> None:
        """An address that used less than `light_s` seconds never waits."""
        self._light_s = light_s
        self._bytes_per_s = START_BYTES_PER_S
        self._last_turns: dict[str, float] = {}
        """By address and node: when a message of the node last had its turn, oldest first."""
        self._appointment = float("-inf")
        """When the message that was refused last may come again."""
        self._use = FairUse()
        self._waiting: list[tuple[float, int, int, asyncio.Future[None]]] = []
        """Order, number, bytes and turn of each waiting message, as a heap."""
        self._waiting_bytes: Counter[str] = Counter()
        self._numbers = itertools.count()
        self._left = SLICE_BYTES
        """Bytes that may still be handled in this turn."""
        self._task: asyncio.Task[None] | None = None

    def find_appointment(
        self, address: str, size: int, now: float, node: str, longest_s: float
    ) -> float | None:
        """Return None if a message may wait here for its turn: for less than `longest_s` seconds.

        Else it should be refused, and may come again in as many seconds as are returned. Each gets
        an appointment of its own. A second message of a node waits half as long at most.
        """
        waits_s = self._waiting_bytes.total() / self._bytes_per_s
        if waits_s < (longest_s / 2 if self._had_turn(address, node, now) else longest_s):
            return None
        self._appointment = max(self._appointment, now + waits_s) + size / self._bytes_per_s
        return min(self._appointment - now, LONGEST_RETRY_S)

    def _had_turn(self, address: str, node: str, now: float) -> bool:
        return now - self._last_turns.get(f"{address} {node}", float("-inf")) < RECENT_S

    async def wait(self, address: str, size: int, now: float, node: str = "") -> None:
        """Wait for the turn of a message. The turn lasts until the caller's next `await`.

        `node` is the node that an address claims to be; empty if that does not matter.
        """
        had_turn = bool(node) and self._had_turn(address, node, now)
        if node:
            self._last_turns.pop(f"{address} {node}", None)
            self._last_turns[f"{address} {node}"] = now
            if len(self._last_turns) > MAX_NODES:
                del self._last_turns[next(iter(self._last_turns))]
        if self.may_begin(address, size, now):
            return
        used_s, _ = self._use.of(address, "", now)
        order = used_s + S_PER_BYTE * self._waiting_bytes[address] + AGAIN_S * had_turn
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

    def may_begin(self, address: str, size: int, now: float) -> bool:
        """Return whether a message need not wait. If so, its turn begins."""
        if self._light_s and self._use.of(address, "", now)[0] < self._light_s:
            return True
        if self._left > 0 and not self._waiting:
            self._begin_slice(size)
            return True
        return False

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
        loop, left = asyncio.get_running_loop(), SLICE_BYTES
        at = loop.time()
        while self._waiting:
            await asyncio.sleep(0)  # messages that have just arrived join the waiting ones
            await asyncio.sleep(0)
            if left <= 0:
                self._measure(SLICE_BYTES - left, loop.time() - at)
            left, at = SLICE_BYTES, loop.time()
            while self._waiting and left > 0:
                _, _, size, turn = heapq.heappop(self._waiting)
                if not turn.done():  # else its client has disconnected
                    turn.set_result(None)
                    left -= size
        self._task = None

    def _measure(self, handled: int, took_s: float) -> None:
        """Adapt the speed to a full slice. The time contains all other work of that turn."""
        speed = handled / max(took_s, 1e-3)
        self._bytes_per_s += MEASURED_SHARE * (speed - self._bytes_per_s)
