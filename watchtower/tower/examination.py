"""Examines a job when an operator asks for it: orders dumps, waits for them, diagnoses.

Each job has at most one examination at a time. All requests for it meanwhile get its result. Owners
take turns. An examination changes nothing in the detection: it opens no incident and accuses no
rank.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import msgspec

from watchtower.evidence.case import Case
from watchtower.fleet.fleet import Fleet
from watchtower.fleet.half_started import with_holders
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.case_inputs import collect_on_demand
from watchtower.jobs.effects import DumpsWanted
from watchtower.jobs.judgement import Judgement
from watchtower.jobs.keeper import Keeper
from watchtower.jobs.ranks import RankRecord
from watchtower.jobs.verdicts import diagnosed_verdict, find_not_judged
from watchtower.service.sharing import Quota
from watchtower.tower.clock import Clock
from watchtower.tower.diagnosis_runner import Runner, run_diagnosis
from watchtower.tower.effects import Effects
from watchtower.tower.recording import Examined, Record
from watchtower.tower.turns import Turns
from watchtower.views.stacks import StackList, list_stacks
from watchtower.wire.verdict import Status, Verdict

AT_ONCE = 4
"""Examinations that run at the same time. Most of their time they wait for agents."""

MAX_EXAMINATIONS = 64
"""Jobs whose examination runs or waits, shared by owners."""

FRESH_S = 3.0
"""Dumps that began within this time before an examination are part of it. An agent that has just
dumped a job does not dump it again at once."""

WAIT_S = 15.0
"""An examination waits this long for dumps, and goes on with those that have arrived. An agent
needs 10 s for a round in which a process does not answer."""

AGAIN_S = 4.0
"""If dumps are missing after this many seconds, they are ordered again. An agent ignores an order
if it dumped the job less than 3 s before, and those dumps may be older than `FRESH_S`."""

POLL_S = 0.1

ROUNDS = 2

NOT_SUSPECT = (
    "the job is {status}: {reason}. This examination compares two dumps, and cannot know "
    "whether a rank stays at its place"
)

_CASES = msgspec.json.Decoder(Case)


class RankNotReportedError(Exception):
    """No agent reports the rank that was asked for. The message contains its number."""


class ExaminationRefusedError(Exception):
    """The job cannot be examined now. The message contains the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """The result of one examination."""

    verdict: Verdict
    evidence: bytes | None
    """The case as JSON, with all stacks; None if no case could be made."""


class Examinations:
    """All examinations of a tower. Not thread-safe: for one event loop."""

    def __init__(
        self,
        fleet: Fleet,
        clock: Clock,
        effects: Effects,
        runner: Runner,
        record: Record,
    ) -> None:
        self._fleet, self._detector, self._clock = fleet, fleet.detector, clock
        self._effects, self._runner, self._record = effects, runner, record
        self._turns = Turns(AT_ONCE, clock)
        self._running: dict[str, asyncio.Task[Examination]] = {}
        self._quota = Quota()

    async def examine(self, name: str, rank: int | None = None) -> Examination | None:
        """Return the result for a live job; None if it is not live.

        Raises ExaminationRefusedError, and RankNotReportedError if `rank` is not one of the job.
        """
        self._record(Examined(at=self._clock.now(), job=name, rank=rank))
        job = self._fleet.jobs.get(name)
        if job is None or job.judgement is None or not any(job.attempt.live()):
            return None
        if rank is not None and rank not in job.attempt.ranks:
            raise RankNotReportedError(f"rank {rank} is not reported")
        task = self._running.get(name)
        if task is None:
            if not self._quota.has_room(job.sharer, MAX_EXAMINATIONS):
                raise ExaminationRefusedError("too many jobs are being examined: try again later")
            task = asyncio.get_running_loop().create_task(self._examine(job, job.judgement))
            self._begin(name, job.sharer, task)
        # One client that goes away must not end the examination of the others.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Cancel all examinations."""
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _begin(self, name: str, owner: str, task: asyncio.Task[Examination]) -> None:
        self._running[name] = task
        self._quota.add(owner, 1)

        def end(done: asyncio.Task[Examination]) -> None:
            del self._running[name]
            self._quota.add(owner, -1)
            if not done.cancelled():
                done.exception()  # those who wait get it; without any, it is not an error

        task.add_done_callback(end)

    async def _examine(self, job: Keeper, live: Judgement) -> Examination:
        async with self._turns.take(job.sharer, job.founder):
            attempt = job.attempt
            since = self._clock.now() - FRESH_S
            await self._order_dumps(job, attempt, since)
            if job.attempt is not attempt or not self._effects.is_current(job, live):
                raise ExaminationRefusedError(f"another attempt of {job.name!r} has just begun")
            result = await run_diagnosis(
                self._runner,
                job,
                lambda: with_holders(
                    collect_on_demand(
                        attempt,
                        self._fleet.nodes,
                        self._detector,
                        since,
                        self._clock.now(),
                        live.watch.stall,
                    ),
                    self._fleet.jobs,
                    self._fleet.nodes,
                    self._detector,
                ),
                None,
                again=True,
            )
        status, reason = live.watch.status, live.watch.reason
        not_judged = find_not_judged(
            attempt, live.watch, self._detector, self._clock.now(), self._clock.wall()
        )
        wall = self._clock.wall()
        verdict = diagnosed_verdict(job.name, attempt.number, status, result.diagnosis, wall)
        if status not in (Status.SUSPECT, Status.HUNG):
            state = status.value if not_judged is None else not_judged.text
            gaps = (NOT_SUSPECT.format(status=state, reason=reason), *verdict.missing_evidence)
            verdict = replace(verdict, missing_evidence=gaps, not_judged=not_judged)
        return Examination(verdict=verdict, evidence=result.evidence)

    async def _order_dumps(self, job: Keeper, attempt: Attempt, since: float) -> None:
        """Order dumps until every reported rank was dumped twice, or for `WAIT_S` seconds."""
        wanted = DumpsWanted(reason="examination", again=True)
        until, order_at = self._clock.now() + WAIT_S, self._clock.now()
        while (now := self._clock.now()) < until:
            if now >= order_at:
                self._effects.orders.order_dumps(job, wanted, now)
                order_at = now + AGAIN_S
            reporting = self._detector.find_reporting(attempt.live(), self._fleet.nodes, now)
            if all(_count_rounds(record, since) >= ROUNDS for record in reporting):
                return
            await asyncio.sleep(POLL_S)


def list_examined_stacks(evidence: bytes, rank: int | None, *, all_threads: bool) -> StackList:
    """Return the stacks in the evidence of an examination. Raises msgspec.MsgspecError."""
    return list_stacks(_CASES.decode(evidence), rank, all_threads=all_threads)


def _count_rounds(record: RankRecord, since: float) -> int:
    """Return how many of the last dumps of a rank are an answer to the order."""
    return sum(at >= since for at, _ in record.dumps)
