"""Runs diagnoses in processes of their own, two at a time but one of each owner. A diagnosis that
costs too much is ended with its process, and its job waits longer each time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from watchtower.daemon_executor import DaemonExecutor
from watchtower.diagnoser.messages import Answer, Request
from watchtower.diagnoser.process import DiagnoserDiedError
from watchtower.tower.clock import Clock
from watchtower.tower.turns import Turns

log = logging.getLogger("watchtower.tower")

FREE_DEATHS = 2
"""A job's diagnosis is tried again at once until its process has died so often in a row. The first
death may be another one's fault: the machine was out of memory."""

BACK_OFF_S = 30.0
MAX_BACK_OFF_S = 600.0
"""After these a job waits so long for its next diagnosis, and twice as long each time."""

BEHIND_S = 60.0
"""Diagnoses that wait this long for their turn make the tower not ready: verdicts come late."""

LANES = 2
"""Diagnosing processes. While one owner's diagnosis takes long, the other one is there for all
others; it is ready, as a start takes longer than most diagnoses."""

MAX_DEATHS = 1024
"""Jobs whose deaths are remembered; the oldest make room."""


Freeze = Callable[[], Callable[[], Request]]
"""Holds the evidence still, and returns what writes the request from it."""


class Diagnoser(Protocol):
    """What answers requests: `DiagnoserProcess`, or the same work without a process in tests."""

    def ask(self, request: Request) -> Answer:
        """Have one case diagnosed. Raises DiagnoserDiedError."""

    def kill(self) -> None:
        """End it at once."""


class NotDiagnosedError(Exception):
    """There is no diagnosis; the message says why."""


@dataclass(slots=True)
class _Deaths:
    """Processes in a row that a job's diagnosis cost."""

    count: int
    again_at: float


class _Lane:
    """One process and the thread that speaks to it."""

    def __init__(self, start: Callable[[], Diagnoser]) -> None:
        self._start = start
        self._executor = DaemonExecutor("diagnose")
        self._diagnoser: Diagnoser | None = None
        self._is_stopped = False

    def warm_up(self) -> None:
        """Start the process, unless it is there; it gets ready by itself."""
        if self._diagnoser is None and not self._is_stopped:
            self._executor.submit(self._make_ready)

    async def ask(self, write: Callable[[], Request]) -> Answer:
        return await asyncio.wrap_future(self._executor.submit(lambda: self._ask(write())))

    def stop(self) -> None:
        self._is_stopped = True
        if self._diagnoser is not None:
            self._diagnoser.kill()
        self._executor.stop(patience_s=0)

    def _ask(self, request: Request) -> Answer:
        try:
            return self._make_ready().ask(request)
        except DiagnoserDiedError:
            self._diagnoser = None
            self._executor.submit(self._make_ready)
            raise

    def _make_ready(self) -> Diagnoser:
        if self._is_stopped:
            raise DiagnoserDiedError("the tower stops")
        self._diagnoser = self._diagnoser or self._start()
        return self._diagnoser


class DiagnosisRunner:
    """Not thread-safe: call it from its event loop only."""

    def __init__(self, clock: Clock, start: Callable[[], Diagnoser]) -> None:
        self._clock = clock
        self._turns = Turns(LANES, clock)
        self._free = [_Lane(start) for _ in range(LANES)]
        self._lanes = tuple(self._free)
        # The second one starts with the first diagnosis: a tower that starts is in a hurry.
        self._free[-1].warm_up()
        self._asked_at: dict[object, float] = {}
        """When each one that waits, or is diagnosed, was asked for."""
        self._deaths: dict[str, _Deaths] = {}

    async def run(
        self, job: str, owner: str, founder: str, freeze: Freeze, *, again: bool = False
    ) -> Answer:
        """Diagnose when it is the owner's turn. `freeze` is called then: while a job waits, it
        holds no dumps that the fleet has dropped. What it returns runs off the event loop.
        `founder` is the node that reported the job first.

        `again`: the job has a diagnosis, so that the owner's jobs that have none go before it.
        Raises NotDiagnosedError, and what both functions raise.
        """
        for lane in self._lanes:
            lane.warm_up()
        ticket = object()
        self._asked_at[ticket] = self._clock.now()
        try:
            async with self._turns.take(owner, founder, again=again):
                return await self._run(job, freeze)
        finally:
            del self._asked_at[ticket]

    def backing_off(self) -> list[str]:
        """Return the jobs whose diagnosis is not tried for now."""
        now = self._clock.now()
        return sorted(job for job, deaths in self._deaths.items() if now < deaths.again_at)

    def behind_s(self) -> float:
        """Return for how long the first that waits has waited."""
        return self._clock.now() - min(self._asked_at.values(), default=self._clock.now())

    def forget(self, job: str) -> None:
        """Forget what the diagnoses of a job cost: it is over."""
        self._deaths.pop(job, None)

    def stop(self) -> None:
        """End the processes and take nothing more."""
        for lane in self._lanes:
            lane.stop()

    async def _run(self, job: str, freeze: Freeze) -> Answer:
        deaths = self._deaths.get(job, _Deaths(0, 0.0))
        wait_s = deaths.again_at - self._clock.now()
        if wait_s > 0:
            raise NotDiagnosedError(
                f"{deaths.count} diagnoses of this job were ended in a row; the next one is tried "
                f"in {wait_s:.0f} s"
            )
        lane = self._free.pop()
        try:
            answer = await lane.ask(freeze())
        except DiagnoserDiedError as error:
            self._count_death(job, deaths)
            raise NotDiagnosedError(f"the diagnosis was ended: {error}") from None
        finally:
            self._free.append(lane)
        self._deaths.pop(job, None)
        return answer

    def _count_death(self, job: str, deaths: _Deaths) -> None:
        count = deaths.count + 1
        doubled = min(count - FREE_DEATHS, 10)
        wait_s = min(BACK_OFF_S * 2**doubled, MAX_BACK_OFF_S) if doubled >= 0 else 0.0
        self._deaths.pop(job, None)
        self._deaths[job] = _Deaths(count, self._clock.now() + wait_s)
        if len(self._deaths) > MAX_DEATHS:
            self._deaths.pop(next(iter(self._deaths)))
