"""One at a time, owners by turns: whoever asks for much waits for himself, not others for him."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator


class Turns:
    """A lock that is handed on from owner to owner. Not thread-safe: for one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """The owner whose turn is next comes first, and so does what each of them asked first."""
        self._is_taken = False

    @contextlib.asynccontextmanager
    async def take(self, owner: str) -> AsyncIterator[None]:
        """Wait for a turn of this owner, and have it for the length of the block."""
        if self._is_taken:
            await self._wait(owner)
        self._is_taken = True
        try:
            yield
        finally:
            self._hand_on(owner)

    async def _wait(self, owner: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was ours already
                self._hand_on(owner)
            raise

    def _hand_on(self, served: str) -> None:
        self._is_taken = False
        if served in self._waiting:
            self._waiting[served] = self._waiting.pop(served)  # behind all others
        while self._waiting:
            owner, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            if not turns:
                del self._waiting[owner]
            if not turn.done():
                self._is_taken = True
                turn.set_result(None)
                return
