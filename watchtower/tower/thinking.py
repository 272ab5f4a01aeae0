"""Diagnoses off the event loop, by turns; one that does not come back costs its own job only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from watchtower.tower.clock import Clock
from watchtower.worker import Worker

THINK_S = 20.0
"""For one diagnosis. Of 16,384 ranks it takes a second; what takes this long does not come back."""

MAX_LEFT_BEHIND = 4
"""Threads that did not come back; with more of them nothing more is begun, as each that computes
takes its share of the tower's time."""

BEHIND_S = 60.0
"""Diagnoses that wait this long for their turn make the tower not ready: incidents open late."""

_T = TypeVar("_T")


class DiagnosisHangsError(Exception):
    """A diagnosis did not come back in time; the message says which."""


class Thinker:
    """One thread that thinks. Not thread-safe: call it from its event loop only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._worker = Worker("diagnose")
        self._turn = asyncio.Lock()
        self._waiting: dict[object, float] = {}
        """Since when each one that is asked for waits, or thinks."""
        self._left_behind: list[tuple[str, Future[Any], Worker]] = []

    async def think(self, job: str, call: Callable[[], _T]) -> _T:
        """Run a call when it is its turn. Raises DiagnosisHangsError, and what the call raises."""
        me = object()
        self._waiting[me] = self._clock.now()
        try:
            async with self._turn:
                return await self._think(job, call)
        finally:
            del self._waiting[me]

    def hanging(self) -> list[str]:
        """Return the jobs of which a diagnosis did not come back."""
        self._left_behind = [each for each in self._left_behind if not each[1].done()]
        return [job for job, _, _ in self._left_behind]

    def behind_s(self) -> float:
        """Return for how long the first that waits has waited."""
        return self._clock.now() - min(self._waiting.values(), default=self._clock.now())

    def stop(self, patience_s: float) -> None:
        """Take nothing more; what thinks now is left behind."""
        self._worker.stop(patience_s)

    async def _think(self, job: str, call: Callable[[], _T]) -> _T:
        hanging = self.hanging()
        if job in hanging or len(hanging) >= MAX_LEFT_BEHIND:
            raise DiagnosisHangsError(f"earlier diagnoses hang: {', '.join(hanging)}")
        future = self._worker.submit(call)
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), THINK_S)
        except TimeoutError:
            if future.done():
                raise  # the call's own, or only just in time
            self._left_behind.append((job, future, self._worker))
            self._worker.stop(patience_s=0)
            self._worker = Worker("diagnose")
            raise DiagnosisHangsError(f"no diagnosis within {THINK_S:g} s") from None
