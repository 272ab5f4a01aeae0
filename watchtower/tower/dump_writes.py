"""Batches of dumps on their way into the store: each once, and none behind one that hangs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

STORE_WAIT_S = 4.0
"""Who sends waits this long until it is stored: an agent gives up after 5 s, and sends it again."""


@dataclass(frozen=True, slots=True)
class _Write:
    future: Future[None]
    since: float


class DumpWrites:
    """Writes under way, in the order in which the store does them. `now` is monotonic seconds."""

    def __init__(self) -> None:
        self._writes: dict[str, _Write] = {}

    def begin(
        self, ident: str, save: Callable[[], Future[None]], now: float
    ) -> Future[None] | None:
        """Return the write of a batch, begun now unless it is under way.

        None while an earlier one hangs: what comes then would only fill the memory.
        """
        while self._writes and next(iter(self._writes.values())).future.done():
            del self._writes[next(iter(self._writes))]
        oldest = next(iter(self._writes.values()), None)
        if oldest is not None and now - oldest.since >= STORE_WAIT_S:
            return None
        if ident not in self._writes:
            self._writes[ident] = _Write(save(), now)
        return self._writes[ident].future
