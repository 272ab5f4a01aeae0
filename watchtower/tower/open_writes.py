"""Writes on their way into the store: each once, and none behind one that hangs."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

STORE_WAIT_S = 4.0
"""A sender waits this long until its message is stored. An agent sends again after 5 s."""

STORE_HANGS_S = 30.0
"""A write in the background may take this long: a first one after a prune of many megabytes."""


@dataclass(frozen=True, slots=True)
class _Write:
    future: Future[None]
    since: float


class OpenWrites:
    """Writes under way, in the order in which the store does them."""

    def __init__(self, patience_s: float) -> None:
        """One that takes longer than `patience_s` hangs."""
        self._patience_s = patience_s
        self._writes: dict[object, _Write] = {}

    def begin(self, key: object, save: Callable[[], Future[None]]) -> Future[None] | None:
        """Return the write of this key, begun now unless it is under way.

        None while an earlier one hangs: what comes then would only fill the memory.
        """
        if self.hanging_s():
            return None
        if key not in self._writes:
            self._writes[key] = _Write(save(), time.monotonic())
        return self._writes[key].future

    def take_done(self) -> list[Future[None]]:
        """Remove the writes that are done, and return them."""
        done: list[Future[None]] = []
        while self._writes and (first := next(iter(self._writes.items())))[1].future.done():
            done.append(self._writes.pop(first[0]).future)
        return done

    def hanging_s(self) -> float:
        """Return for how long the first one hangs; 0 when none does."""
        now = time.monotonic()
        first = next(iter(self._writes.values()), None)
        since = now if first is None or first.future.done() else first.since
        return now - since if now - since >= self._patience_s else 0.0
