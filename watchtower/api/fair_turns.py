"""Turns of the event loop for the messages of agents: the address that used least time is first.

A valid message may be large: a report of 1,024 ranks takes as long as a hundred usual ones. If the
loop handled all that have arrived, every other message would wait for them. Here an address with
little use need not wait. Only a few messages of the others are handled before the loop reads from
the network again, and the address with less use goes first.

A dump never waits for longer than its sender. One that would wait longer, behind those whose turns
come before its own, is refused with an appointment, so that those that are accepted are handled in
time. Messages that come after it do not count: however much one address sends, another that has
used less is not refused for it. The first message of a node goes before second ones: a stall is
diagnosed when every rank was dumped once.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter

from watchtower.service.sharing import FairUse

SLICE_BYTES = 160 * 1024
"""Bytes of messages that are handled in one turn: 16 batches of dumps of eight ranks, 32 reports,
or one of the largest messages. They take about 10 ms. With one batch per turn, each would wait for
the threads that hold the interpreter: 4,096 batches took 15 s."""

S_PER_BYTE = 1e-7
"""Seconds that handling a byte takes. An address is charged for its waiting messages before they
are handled."""

ORDER_S = 0.01
"""Messages whose addresses differ by less use than this keep the order in which they arrived."""

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

MAX_ADDRESSES = 4096
"""Addresses whose last appointment is known."""


class FairTurns:
    """Handles messages of one kind within a slice of each turn. Not thread-safe."""

    def __init__(self, light_s: float = 0.0) -> None:
        """An address that used less than `light_s` seconds never waits."""
        self._light_s = light_s
        self._bytes_per_s = START_BYTES_PER_S
        self._last_turns: dict[str, float] = {}
        """By address and node: when a message of the node last had its turn, oldest first."""
        self._last_appointment = float("-inf")
        self._appointments: dict[str, float] = {}
        """By address: when its message that was refused last may come again, oldest first."""
        self._use = FairUse()
        self._waiting: list[tuple[int, int, int, asyncio.Future[None]]] = []
        """Order, number, bytes and turn of each waiting message, as a heap."""
        self._waiting_bytes: Counter[str] = Counter()
        """By address."""
        self._bytes_by_order: Counter[int] = Counter()
        """Waiting bytes by order. There are few orders: `ORDER_S` apart, below a few minutes."""
        self._numbers = itertools.count()
        self._left = SLICE_BYTES
        """Bytes that may still be handled in this turn."""
        self._task: asyncio.Task[None] | None = None

    def find_appointment(
        self, address: str, size: int, now: float, node: str, longest_s: float
    ) -> float | None:
        """Return None if a message may wait here for its turn: for less than `longest_s` seconds.

        Else it should be refused, and may come again in as many seconds as are returned. A second
        message of a node waits half as long at most.
        """
        had_turn = self._had_turn(address, node, now)
        order = self._find_order(address, size, now, had_turn)
        before = sum(count for each, count in self._bytes_by_order.items() if each <= order)
        waits_s = before / self._bytes_per_s
        if waits_s < (longest_s / 2 if had_turn else longest_s):
            return None
        return self._appoint(address, size, now, waits_s) - now

    def _appoint(self, address: str, size: int, now: float, waits_s: float) -> float:
        """Return when a refused message may come again.

        Each address gets a time behind those of all others. Until then its further messages delay
        only itself.
        """
        took_s, latest = size / self._bytes_per_s, now + LONGEST_RETRY_S
        at = self._appointments.pop(address, now)
        if at > now:
            at = min(at + took_s, latest)
        else:
            at = min(max(self._last_appointment, now + waits_s) + took_s, latest)
            self._last_appointment = at
        self._appointments[address] = at
        if len(self._appointments) > MAX_ADDRESSES:
            del self._appointments[next(iter(self._appointments))]
        return at

    def _had_turn(self, address: str, node: str, now: float) -> bool:
        last = self._last_turns.get(f"{address} {node}", float("-inf"))
        return bool(node) and now - last < RECENT_S

    def _find_order(self, address: str, size: int, now: float, had_turn: bool) -> int:
        """Return the order of a message that arrives now: the lowest one is first."""
        used_s, _ = self._use.of(address, "", now)
        waiting_s = S_PER_BYTE * (self._waiting_bytes[address] + size)
        return int((used_s + waiting_s + AGAIN_S * had_turn) / ORDER_S)

    async def wait(self, address: str, size: int, now: float, node: str = "") -> None:
        """Wait for the turn of a message. The turn lasts until the caller's next `await`.

        `node` is the node that an address claims to be; empty if that does not matter.
        """
        order = self._find_order(address, size, now, self._had_turn(address, node, now))
        self._note_turn(address, node, now)
        if self.may_begin(address, size, now):
            return
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (order, next(self._numbers), size, turn))
        self._count(address, order, size)
        if self._task is None:
            self._task = asyncio.create_task(self._grant_turns())
        try:
            await turn
        finally:
            self._count(address, order, -size)

    def _note_turn(self, address: str, node: str, now: float) -> None:
        if not node:
            return
        self._last_turns.pop(f"{address} {node}", None)
        self._last_turns[f"{address} {node}"] = now
        if len(self._last_turns) > MAX_NODES:
            del self._last_turns[next(iter(self._last_turns))]

    def _count(self, address: str, order: int, size: int) -> None:
        """Add waiting bytes; negative ones no longer wait."""
        self._waiting_bytes[address] += size
        if not self._waiting_bytes[address]:
            del self._waiting_bytes[address]
        self._bytes_by_order[order] += size
        if not self._bytes_by_order[order]:
            del self._bytes_by_order[order]

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
