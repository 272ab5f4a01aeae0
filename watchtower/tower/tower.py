"""The tower: reports and dumps in, verdicts and orders out.

Everything here runs on one event loop. Decisions come from `core`; this file feeds it, carries out
its effects and keeps one job's trouble away from the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from watchtower.core.case import Case
from watchtower.core.detector import Condition, Detector, Kind
from watchtower.core.diagnosis import diagnose
from watchtower.core.effects import (
    DiagnosisWanted,
    DumpsWanted,
    Effect,
    IncidentClosed,
    IncidentOpened,
    IncidentUpdated,
    PauseLearned,
    StatusChanged,
)
from watchtower.core.fleet import Fleet
from watchtower.core.generation import Generation, Job
from watchtower.core.pace import Pauses
from watchtower.core.policy import Policy
from watchtower.core.scene import Scene, view_scene
from watchtower.core.snapshot import dumps_since, take_case
from watchtower.store.records import Incident, Memory
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock, make_id
from watchtower.tower.live import LiveJob
from watchtower.tower.order_book import OrderBook
from watchtower.wire import PROTOCOL_VERSION
from watchtower.wire.dumps import DumpBatch, DumpReceipt
from watchtower.wire.orders import Deadline, ReportReply
from watchtower.wire.report import Report
from watchtower.wire.verdict import Status

log = logging.getLogger("watchtower.tower")

FORGET_AFTER_S = 3600.0
"""An ended job stays in the live views this long; its incidents stay in the store."""


@dataclass(slots=True)
class Counters:
    """Totals since the start, for /metrics."""

    reports: int = 0
    dumps: int = 0
    diagnoses: int = 0
    incidents: int = 0
    failed_ticks: int = 0
    last_tick_at: float = 0.0
    last_tick_s: float = 0.0


class Tower:
    """Live state of all jobs. Not thread-safe: call it from its event loop only."""

    def __init__(self, policy: Policy, store: SqliteStore, memory: Memory, clock: Clock) -> None:
        self.policy = policy
        self.detector = Detector(policy)
        self.fleet = Fleet(policy)
        self.fleet.last_generations.update(memory.generations)
        self.store = store
        self.clock = clock
        self.id = make_id(clock.wall())
        self.live: dict[str, LiveJob] = {}
        self.counters = Counters(last_tick_at=clock.now())
        self._pauses = {job: Pauses(known) for job, known in memory.pauses.items()}
        self._orders = OrderBook()
        self._thinker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="diagnose")
        self._tasks: set[asyncio.Task[None]] = set()
        self._close_left_open(memory.open_incidents)

    async def close(self) -> None:
        """Finish running diagnoses, or leave them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._thinker.shutdown(wait=False, cancel_futures=True)

    def take_report(self, report: Report) -> ReportReply:
        """Take one node's report. Raises FleetFullError when a bound is reached."""
        now = self.clock.now()
        self.fleet.take_report(report, now)
        self.counters.reports += 1
        for name in {vitals.job for vitals in report.ranks} & self.fleet.jobs.keys():
            self._live_job(self.fleet.jobs[name])
        return ReportReply(
            version=PROTOCOL_VERSION,
            tower_id=self.id,
            deadlines=tuple(self._deadlines(report)),
            orders=self._orders.collect(report.node, now),
        )

    async def take_dumps(self, batch: DumpBatch) -> DumpReceipt:
        """Take one batch of dumps: kept durably before it is acknowledged."""
        await asyncio.wrap_future(self.store.save_dumps(batch, self.clock.wall()))
        self.counters.dumps += 1
        now = self.clock.now()
        if self.fleet.take_dumps(batch, now):
            self._tick_job(self.fleet.jobs[batch.job], now)
        return DumpReceipt(id=batch.id)

    def tick(self) -> None:
        """Judge every job; one job's failure never stops the watch of the others."""
        now = self.clock.now()
        for job in list(self.fleet.jobs.values()):
            for pace in job.generation.paces.values():
                pace.end_tick()
            self._tick_job(job, now)
            self._forget_old(job, now)
        self.fleet.drop_old_nodes(now)
        self.counters.last_tick_at = now
        self.counters.last_tick_s = self.clock.now() - now

    def _tick_job(self, job: Job, now: float) -> None:
        live = self._live_job(job)
        try:
            self._step(job.generation, live, now)
        except Exception:
            self.counters.failed_ticks += 1
            live.failures += 1
            if live.failures == 1:
                log.exception("job %s cannot be judged; the other jobs go on", job.name)
        else:
            live.failures = 0

    def _live_job(self, job: Job) -> LiveJob:
        live = self.live.get(job.name)
        if live is not None and live.generation == job.generation.number:
            return live
        if live is not None:
            text = f"generation {job.generation.number} began"
            self._carry_out(live, None, live.watch.end(text), self.clock.now())
        pauses = self._pauses.setdefault(job.name, Pauses())
        begun = LiveJob.begin(job.name, job.generation.number, pauses, self.policy)
        self.live[job.name] = begun
        self.store.save_generation(job.name, job.generation.number)
        log.info("job %s: generation %d seen", job.name, job.generation.number)
        return begun

    def _step(self, gen: Generation, live: LiveJob, now: float) -> None:
        condition = self.detector.judge(gen, self.fleet.nodes, live.pauses, now)
        live.scene = self._scene(gen, live, condition, now)
        effects = live.watch.step(condition, live.scene, now)
        self._carry_out(live, gen, effects, now)
        if condition.kind is Kind.ENDED and live.ended_at is None:
            live.ended_at = now

    def _scene(self, gen: Generation, live: LiveJob, condition: Condition, now: float) -> Scene:
        if condition.stall is None:
            return Scene()
        diagnosis = live.watch.diagnosis
        nodes = self.fleet.nodes
        return view_scene(gen, nodes, self.detector, condition.stall, diagnosis, now)

    def _carry_out(
        self, live: LiveJob, gen: Generation | None, effects: list[Effect], now: float
    ) -> None:
        for effect in effects:
            match effect:
                case StatusChanged(before=before, after=after, reason=reason):
                    log.info("job %s: %s -> %s, %s", live.name, before.value, after.value, reason)
                case DumpsWanted() if gen is not None:
                    self._order_dumps(live, gen, effect, now)
                case DiagnosisWanted() if gen is not None:
                    self._start_diagnosis(live, gen, now)
                case PauseLearned(pause=pause):
                    self.store.save_pause(live.name, pause)
                case IncidentOpened() | IncidentUpdated() | IncidentClosed():
                    self._keep_incident(live, effect, now)

    def _keep_incident(
        self, live: LiveJob, effect: IncidentOpened | IncidentUpdated | IncidentClosed, now: float
    ) -> None:
        wall = self.clock.wall()
        match effect:
            case IncidentOpened():
                self.counters.incidents += 1
                self._save(live.open_incident(now, wall))
            case IncidentUpdated():
                self._save(live.update_incident(now, wall))
            case IncidentClosed():
                self._save(live.close_incident(live.watch.status, wall))

    def _order_dumps(self, live: LiveJob, gen: Generation, wanted: DumpsWanted, now: float) -> None:
        since = live.watch.stall.since if live.watch.stall else now
        nodes = {
            record.key.node
            for record in gen.live()
            if wanted.again or not dumps_since(record, since)
        }
        self._orders.place(nodes, gen.job, make_id(self.clock.wall()), now)

    def _start_diagnosis(self, live: LiveJob, gen: Generation, now: float) -> None:
        if live.is_diagnosing:
            live.is_asked_again = True
            return
        live.is_diagnosing, live.is_asked_again = True, False
        case = take_case(gen, self.fleet.nodes, self.detector, live.watch.stall, now)
        task = asyncio.get_running_loop().create_task(self._diagnose(live, gen, case))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _diagnose(self, live: LiveJob, gen: Generation, case: Case) -> None:
        loop = asyncio.get_running_loop()
        suspicion = live.watch.suspect_since
        try:
            diagnosis = await loop.run_in_executor(self._thinker, diagnose, case)
        except Exception:
            log.exception("job %s: the diagnosis failed", live.name)
            return
        finally:
            live.is_diagnosing = False
        now = self.clock.now()
        self.counters.diagnoses += 1
        if suspicion == live.watch.suspect_since:  # else it speaks of a stall that is over
            live.case = case
            live.diagnosed_at = self.clock.wall()
            self._carry_out(live, gen, live.watch.take_diagnosis(diagnosis), now)
        if live.is_asked_again:
            self._start_diagnosis(live, gen, now)

    def _deadlines(self, report: Report) -> Iterator[Deadline]:
        known: dict[tuple[str, str], float | None] = {}
        for vitals in report.ranks:
            job, beat = self.fleet.jobs.get(vitals.job), vitals.beat
            if job is None or beat is None or beat.step < 0 or vitals.ended is not None:
                continue
            key = (vitals.job, beat.phase)
            if key not in known:
                pauses = self._pauses.get(vitals.job, Pauses())
                known[key] = self.detector.deadline_s(job.generation, beat.phase, pauses)
            after_s = known[key]
            if after_s is not None:
                yield Deadline(job=vitals.job, rank=vitals.rank, after_s=after_s, phase=beat.phase)

    def _forget_old(self, job: Job, now: float) -> None:
        live = self.live[job.name]
        if live.ended_at is not None and now - live.ended_at > FORGET_AFTER_S:
            self.fleet.forget(job.name)
            self._orders.drop(job.name)
            del self.live[job.name]

    def _save(self, incident: Incident | None) -> None:
        if incident is not None:
            self.store.save_incident(incident).add_done_callback(_log_failure)

    def _close_left_open(self, incidents: tuple[Incident, ...]) -> None:
        """A tower that stopped in the middle of an incident cannot say how it went on."""
        wall = self.clock.wall()
        for incident in incidents:
            lost = Status.MONITORING_LOST
            verdict = replace(incident.verdict, status=lost)
            self._save(
                replace(incident, status=lost, verdict=verdict, updated_at=wall, closed_at=wall)
            )


def _log_failure(future: Future[None]) -> None:
    error = future.exception()
    if error is not None:
        log.error("an incident could not be stored: %s; check the data folder's space", error)
