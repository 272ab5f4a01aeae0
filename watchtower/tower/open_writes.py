"""Unfinished writes to the store: each one once, and no new one while a write hangs."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

STORE_WAIT_S = 4.0
"""Seconds that a request waits until its message is stored. An agent sends again after 5 s."""

STORE_HANGS_S = 30.0
"""Seconds that a write in the background may take, such as the first one after a large deletion."""


@dataclass(frozen=True, slots=True)
class _Write:
    future: Future[None]
    since: float


class OpenWrites:
    """Unfinished writes, in the order in which the store executes them."""

    def __init__(self, patience_s: float) -> None:
        """A write that takes longer than `patience_s` seconds hangs."""
        self._patience_s = patience_s
        self._writes: dict[object, _Write] = {}

    def begin(self, key: object, save: Callable[[], Future[None]]) -> Future[None] | None:
        """Return the write of this key. Start it if it has not started.

        Return None while an earlier write hangs: further writes would only fill the memory.
        """
        if self.hanging_s():
            return None
        if key not in self._writes:
            self._writes[key] = _Write(save(), time.monotonic())
        return self._writes[key].future

    def take_done(self) -> list[Future[None]]:
        """Remove and return the writes that are done."""
        done: list[Future[None]] = []
        while self._writes and (first := next(iter(self._writes.items())))[1].future.done():
            done.append(self._writes.pop(first[0]).future)
        return done

    def __len__(self) -> int:
        """Return the number of unfinished writes."""
        return sum(not write.future.done() for write in self._writes.values())

    def oldest_s(self) -> float:
        """Return for how many seconds the oldest unfinished write has waited; 0 without one."""
        since = next((w.since for w in self._writes.values() if not w.future.done()), None)
        return 0.0 if since is None else time.monotonic() - since

    def hanging_s(self) -> float:
        """Return for how many seconds the first write hangs; 0 if it does not hang."""
        now = time.monotonic()
        first = next(iter(self._writes.values()), None)
        since = now if first is None or first.future.done() else first.since
        return now - since if now - since >= self._patience_s else 0.0
