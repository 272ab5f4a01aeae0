"""Runs diagnoses in separate processes: two at a time, and one per owner.

A diagnosis begins with a brief try. If it needs more CPU time than this has, it is made again in a
third process, with more time, after the owners that wait for that process. So owners whose
diagnoses need all the time that they may use delay each other, but no other owner.

If a diagnosis exceeds its limits, its process is ended. The job then waits longer each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Protocol

from watchtower.diagnoser.messages import Answer, Request, limits_for
from watchtower.diagnoser.process import DiagnoserDiedError, GaveUpError
from watchtower.diagnosis.diagnosed import not_diagnosed
from watchtower.jobs.case_inputs import CaseInputs, split_case
from watchtower.jobs.keeper import Keeper
from watchtower.jobs.verdicts import DiagnosisResult, Tries
from watchtower.service.calls import DaemonExecutor
from watchtower.tower.clock import Clock
from watchtower.tower.counters import Durations
from watchtower.tower.recording import Diagnosed, DiagnosisAsked, Record
from watchtower.tower.turns import Turns

log = logging.getLogger("watchtower.tower")

FREE_DEATHS = 2
"""Number of consecutive deaths of the process without a wait before the next diagnosis. The cause
of the first one may be elsewhere: the machine had no memory left."""

BACK_OFF_S = 30.0
MAX_BACK_OFF_S = 600.0
"""Seconds that a job then waits for its next diagnosis: doubled each time, up to the maximum."""

BEHIND_S = 60.0
"""If a diagnosis waits this many seconds for its turn, the tower is not ready."""

BRIEF_WORKERS = 2
"""Processes for brief tries. While one owner's diagnosis takes long, the other process serves all
other owners. It runs already, because its start takes longer than most diagnoses."""

LONG_WORKERS = 1
"""Processes for diagnoses that gave up their brief try. They start when they are needed."""

DURATIONS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Bounds of the counted durations of diagnoses."""


Freeze = Callable[[], Callable[[], Request]]
"""Takes a copy of the evidence, and returns a function that encodes the request from it."""


class Diagnoser(Protocol):
    """The interface of `DiagnoserProcess`. Tests use one that works without a process."""

    def ask(self, request: Request, *, brief: bool = False) -> Answer:
        """Return the answer to one request. Raises DiagnoserDiedError, and GaveUpError if
        `brief`."""

    def kill(self) -> None:
        """End the process at once."""


class Runner(Protocol):
    """What runs the diagnoses of a tower: `DiagnosisRunner`, or a replay."""

    durations: Durations
    """Durations of the diagnoses that ended by themselves, without the wait for a turn."""
    killed: int
    """Number of diagnoses that were ended because they exceeded their limits."""

    async def run(
        self,
        job: str,
        owner: str,
        founder: str,
        tries: Tries,
        freeze: Freeze,
        *,
        again: bool = False,
    ) -> Answer:
        """Wait for the owner's turn, then return the answer of a diagnosis.

        `freeze` is called when the turn begins, so that a waiting job does not store dumps that the
        fleet has dropped. The function that it returns runs outside the event loop. `founder` is
        the node that reported the job first, `tries` how its latest diagnoses went. `again`: the
        job has a diagnosis, so that the owner's jobs without one are first. Raises
        NotDiagnosedError, and the errors of both functions.
        """

    def behind_s(self) -> float:
        """Return the seconds since the oldest unfinished diagnosis was requested."""

    def stop(self) -> None:
        """End what runs and accept no more requests."""


MakeRunner = Callable[[Clock, Record], Runner]
"""Makes what runs the diagnoses of a tower."""


class NotDiagnosedError(Exception):
    """There is no diagnosis. The message contains the reason."""


class _Worker:
    """One process and the thread that communicates with it."""

    def __init__(self, start: Callable[[], Diagnoser]) -> None:
        self._start = start
        self._executor = DaemonExecutor("diagnose")
        self._diagnoser: Diagnoser | None = None
        self._is_stopped = False

    def warm_up(self) -> None:
        """Start the process if it does not run, without waiting until it is ready."""
        if self._diagnoser is None and not self._is_stopped:
            self._executor.submit(self._make_ready)

    async def ask(self, write: Callable[[], Request], *, brief: bool) -> Answer:
        return await asyncio.wrap_future(self._executor.submit(lambda: self._ask(write(), brief)))

    def stop(self) -> None:
        self._is_stopped = True
        if self._diagnoser is not None:
            self._diagnoser.kill()
        self._executor.stop(patience_s=0)

    def _ask(self, request: Request, brief: bool) -> Answer:
        try:
            return self._make_ready().ask(request, brief=brief)
        except DiagnoserDiedError:
            self._diagnoser = None
            self._executor.submit(self._make_ready)
            raise

    def _make_ready(self) -> Diagnoser:
        if self._is_stopped:
            raise DiagnoserDiedError("the tower is stopping")
        self._diagnoser = self._diagnoser or self._start()
        return self._diagnoser


class _WorkerPool:
    """Processes of one kind, which owners use in turn."""

    def __init__(self, count: int, clock: Clock, start: Callable[[], Diagnoser]) -> None:
        self.all = tuple(_Worker(start) for _ in range(count))
        self._free = list(self.all)
        self._turns = Turns(count, clock)

    @contextlib.asynccontextmanager
    async def take(self, owner: str, founder: str, *, again: bool) -> AsyncIterator[_Worker]:
        """Wait for the owner's turn and hold a process until the end of the block."""
        async with self._turns.take(owner, founder, again=again):
            worker = self._free.pop()
            try:
                yield worker
            finally:
                self._free.append(worker)


class DiagnosisRunner:
    """Runs diagnoses. Not thread-safe: call it only from its event loop."""

    def __init__(self, clock: Clock, record: Record, start: Callable[[], Diagnoser]) -> None:
        """`start` returns a new diagnoser."""
        self._clock, self._record = clock, record
        self._brief = _WorkerPool(BRIEF_WORKERS, clock, start)
        self._long = _WorkerPool(LONG_WORKERS, clock, start)
        # The second process starts with the first diagnosis, so that the tower starts quickly.
        self._brief.all[-1].warm_up()
        self._asked_at: dict[object, float] = {}
        """Start of the wait of each diagnosis that waits or runs."""
        self._asked = 0
        self.durations = Durations(DURATIONS_S)
        """Durations of the diagnoses that ended by themselves, without the wait for a turn."""
        self.killed = 0
        """Number of diagnoses that were ended because they exceeded their limits."""

    async def run(
        self,
        job: str,
        owner: str,
        founder: str,
        tries: Tries,
        freeze: Freeze,
        *,
        again: bool = False,
    ) -> Answer:
        """Return the answer of a diagnosing process, as `Runner` says."""
        self._asked += 1
        number, frozen_at = self._asked, self._clock.now()
        self._record(DiagnosisAsked(at=frozen_at, job=job, number=number))

        def freeze_now() -> Callable[[], Request]:
            nonlocal frozen_at
            frozen_at = self._clock.now()
            return freeze()

        why_not = ""
        try:
            return await self._take_turns(owner, founder, tries, freeze_now, again=again)
        except Exception as error:
            why_not = str(error) or type(error).__name__
            raise
        except asyncio.CancelledError:
            number = 0
            raise
        finally:
            if number:
                now = self._clock.now()
                self._record(Diagnosed(at=now, number=number, frozen_at=frozen_at, why_not=why_not))

    async def _take_turns(
        self, owner: str, founder: str, tries: Tries, freeze: Freeze, *, again: bool
    ) -> Answer:
        for worker in self._brief.all:
            worker.warm_up()
        ticket = object()
        self._asked_at[ticket] = self._clock.now()
        try:
            if not tries.is_long:
                with contextlib.suppress(GaveUpError):
                    async with self._brief.take(owner, founder, again=again) as worker:
                        return await self._run(tries, worker, freeze, brief=True)
                tries.is_long = True
            async with self._long.take(owner, founder, again=again) as worker:
                return await self._run(tries, worker, freeze, brief=False)
        finally:
            del self._asked_at[ticket]

    def behind_s(self) -> float:
        """Return the seconds since the oldest unfinished diagnosis was requested."""
        return self._clock.now() - min(self._asked_at.values(), default=self._clock.now())

    def stop(self) -> None:
        """End the processes and accept no more requests."""
        for worker in (*self._brief.all, *self._long.all):
            worker.stop()

    async def _run(self, tries: Tries, worker: _Worker, freeze: Freeze, *, brief: bool) -> Answer:
        wait_s = tries.again_at - self._clock.now()
        if wait_s > 0:
            raise NotDiagnosedError(
                f"{tries.deaths} diagnoses of this job in a row were ended; the next one starts in "
                f"{wait_s:.0f} s"
            )
        began = self._clock.now()
        try:
            answer = await worker.ask(freeze(), brief=brief)
            self.durations.observe(self._clock.now() - began)
        except DiagnoserDiedError as error:
            self._count_death(tries)
            raise NotDiagnosedError(f"the diagnosis was ended: {error}") from None
        tries.deaths, tries.again_at = 0, 0.0
        return answer

    def _count_death(self, tries: Tries) -> None:
        self.killed += 1
        tries.deaths += 1
        doubled = min(tries.deaths - FREE_DEATHS, 10)
        wait_s = min(BACK_OFF_S * 2**doubled, MAX_BACK_OFF_S) if doubled >= 0 else 0.0
        tries.again_at = self._clock.now() + wait_s


class DiagnosisError(Exception):
    """A diagnosis failed in its process. The message is the traceback from that process."""


async def run_diagnosis(
    runner: Runner,
    keeper: Keeper,
    take: Callable[[], CaseInputs],
    earlier: bytes | None,
    *,
    again: bool,
) -> DiagnosisResult:
    """Return the diagnosis of a job. Wait for the owner's turn, then diagnose in another process.

    `take` collects the inputs at the start of the turn. `again`: the job already has a diagnosis.
    Errors are logged, never raised.
    """
    job, owner = keeper.name, keeper.sharer
    evidence, extra, stalled_for_s = None, {"sharer": owner}, 0.0

    def freeze() -> Callable[[], Request]:
        nonlocal stalled_for_s
        inputs = take()
        stalled_for_s = inputs.stalled_for_s
        return partial(_write, inputs, earlier)

    try:
        answer = await runner.run(job, owner, keeper.founder, keeper.tries, freeze, again=again)
        evidence = answer.evidence
        if answer.diagnosis is not None:
            if answer.error:
                failed = DiagnosisError(answer.error)
                log.error("job %s: the summary failed", job, exc_info=failed, extra=extra)
            return DiagnosisResult(
                diagnosis=answer.diagnosis, evidence=evidence, summary=answer.summary
            )
        why = "it failed: see the traceback in the tower's log"
        part = "the diagnosis failed" if evidence else "no case could be made"
        log.error("job %s: %s", job, part, exc_info=DiagnosisError(answer.error), extra=extra)
    except NotDiagnosedError as error:
        why = str(error)
        log.warning("job %s is not diagnosed: %s", job, why, extra=extra)
    except Exception:
        why = "it failed: see the traceback in the tower's log"
        log.exception("job %s: the diagnosis could not be started", job, extra=extra)
    return DiagnosisResult(diagnosis=not_diagnosed(stalled_for_s, why), evidence=evidence)


def _write(inputs: CaseInputs, earlier: bytes | None) -> Request:
    parts, bodies = split_case(inputs)
    limits = limits_for(len(parts.case.ranks))
    return Request(limits=limits, parts=parts, bodies=bodies, earlier=earlier)
