"""The tower: it receives reports and dumps, and produces verdicts and orders.

Everything here runs on one event loop. `jobs` makes the decisions, and `effects.py` executes them.
An error in the handling of one job does not affect other jobs.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Raw

from watchtower.fleet.fleet import Fleet
from watchtower.fleet.report_interval import report_interval_s
from watchtower.jobs.aftermath import Loss, find_losses
from watchtower.jobs.condition import Condition, ConditionKind
from watchtower.jobs.detector import Detector
from watchtower.jobs.effects import DumpsWanted
from watchtower.jobs.generation import Generation
from watchtower.jobs.no_heartbeat import wants_sample
from watchtower.jobs.roster import Job
from watchtower.jobs.stall_context import StallContext, stall_context_of
from watchtower.policy import Policy
from watchtower.store.protocol import Store
from watchtower.store.values import StartupState
from watchtower.tower.acks import Acks
from watchtower.tower.clock import Clock
from watchtower.tower.counters import Counters
from watchtower.tower.deadlines import find_deadlines
from watchtower.tower.diagnosis_runner import MakeRunner
from watchtower.tower.effects import Effects
from watchtower.tower.examination import Examinations
from watchtower.tower.feedback import Feedbacks
from watchtower.tower.incident_events import Change, IncidentFeed, IncidentListener
from watchtower.tower.inputs import Dumped, Record, Reported, Ticked, unrecorded
from watchtower.tower.job_facts import find_job_facts
from watchtower.tower.job_labels import note_labels
from watchtower.tower.learned_pauses import LearnedPauses
from watchtower.tower.left_incidents import LeftIncidents
from watchtower.tower.live import CASES, STEPS, LiveJob
from watchtower.tower.live_grids import LiveGrids
from watchtower.tower.native_orders import NativeOrders
from watchtower.tower.node_incidents import NodeIncidents
from watchtower.tower.recent_answers import RecentAnswers
from watchtower.tower.shadow import NO_SHADOW, ShadowMode
from watchtower.tower.silences import Silences
from watchtower.tower.store_writer import StoreWriter, recall_dumps
from watchtower.tower.tracing import TraceOrders
from watchtower.tower.troubles import Troubles
from watchtower.tower.turns import Turns
from watchtower.wire import PROTOCOL_VERSION
from watchtower.wire.drills import is_drill
from watchtower.wire.dumps import DumpBatch, DumpReceipt, SentBatch
from watchtower.wire.orders import MAX_ORDERS, ReportReply
from watchtower.wire.report import Report
from watchtower.wire.verdict import Status

log = logging.getLogger("watchtower.tower")

FORGET_AFTER_S = 3600.0
"""Seconds that an ended job stays in the live views. Its incidents stay in the store."""

FORGET_LOST_AFTER_S = 6 * 3600.0
"""Seconds after which a job is dropped if all its agents are silent."""

FORGET_CROWDED_AFTER_S = 60.0
"""Both limits if there is little space for new jobs."""

JUDGE_WITHIN_S = 0.1
"""Seconds from new dumps to the check of their job, so that dumps of thousands of nodes that arrive
together are checked together."""

JUDGE_SHARE = 0.2
"""Largest share of the time for checks after dumps. A job of 16,384 ranks takes 60 ms."""


READING = "reading its ranks from a report"


class Tower:
    """Live state of all jobs. Not thread-safe: call it from its event loop only."""

    def __init__(
        self,
        policy: Policy,
        store: Store,
        startup: StartupState,
        clock: Clock,
        make_runner: MakeRunner,
        listeners: Sequence[IncidentListener] = (),
        shadow: ShadowMode = NO_SHADOW,
        record: Record = unrecorded,
    ) -> None:
        """`listeners` receive the events of incidents after the writer of the store.

        `record` takes every input first.
        """
        self._record = record
        self.shadow = shadow
        self.notes: list[str] = list(filter(None, [shadow.describe()]))
        """Sentences for operators about the alerts of this tower; `/readyz` shows them."""
        self.policy = policy
        self.detector = Detector(policy)
        self.fleet = Fleet(policy)
        self.fleet.past.update(startup.generations)
        self.store_writer = StoreWriter(store, clock)
        self.node_incidents = NodeIncidents(startup.blames, startup.named)
        self.feed = IncidentFeed([self.store_writer, self.node_incidents, *listeners])
        self._left = LeftIncidents(startup.incidents, self.feed, clock)
        self.silences = Silences(self.store_writer, startup.silences, clock, record)
        self.similar = RecentAnswers[Any]()
        """Which earlier incidents are like one, by incident and what is compared."""
        self.drawings = RecentAnswers[Any]()
        """The drawn series of incidents, with about 20 kB each. The same messages and suspects
        always give the same drawing."""
        self.feedback = Feedbacks(self.store_writer, startup.feedback, clock, record)
        self.acks = Acks(self.store_writer, self.feed, clock, record)
        self.clock = clock
        self.live: dict[str, LiveJob] = {}
        self.troubles = Troubles()
        self.counters = Counters(last_tick_at=clock.now())
        self._pauses = LearnedPauses(self.fleet, self.store_writer, startup.pauses, clock)
        self._recalls = Turns(1, clock)
        self.runner = make_runner(clock, record)
        self.effects = Effects(
            self.fleet,
            self.detector,
            clock,
            self.store_writer,
            self.feed,
            self.runner,
            self.live,
            self.counters,
        )
        self.natives = NativeOrders(policy, clock, self.live)
        self.traces = TraceOrders(self.fleet, self.live, self.store_writer, clock, record)
        self.examinations = Examinations(
            self.fleet,
            self.detector,
            clock,
            self.effects,
            self.natives,
            self.runner,
            self.live,
            record,
        )
        self.grids = LiveGrids(self.fleet, self.detector, clock, self.live)
        self._restore_outages(startup)
        self._dirty: dict[str, None] = {}
        """Jobs to judge, in the order of their dumps: a replay judges them in the same order."""
        self._judging: asyncio.TimerHandle | None = None
        self._judge_again_at = float("-inf")

    def _restore_outages(self, startup: StartupState) -> None:
        """Continue the outages of the last run."""
        now, wall = self.clock.now(), self.clock.wall()
        for one in startup.incidents:
            outage, cause = one.identity.outage, one.verdict.shared_cause
            self.effects.outages.restore(outage, cause, wall - one.opened_at, now)

    async def close(self) -> None:
        """Cancel running diagnoses, and write all unsaved data to the store."""
        if self._judging is not None:
            self._judging.cancel()
        await self.examinations.close()
        await self.effects.close()
        self.runner.stop()
        self.store_writer.close()

    def count_changes(self) -> int:
        """Return how often people have changed something: acknowledgements, silences, answers."""
        return self.acks.changes + self.silences.changes + self.feedback.changes

    def take_report(self, report: Report) -> ReportReply:
        """Process one node's report and return the reply. Raises FleetFullError at a limit."""
        now = self.clock.now()
        self._record(Reported(at=now, report=report))
        failed = self.fleet.take_report(report, now)
        self.counters.reports += 1
        node = self.fleet.nodes[report.node]
        for name in sorted(node.labels | failed.keys() if failed else node.labels):
            self._begin_to_monitor(name, failed.get(name))
        note_labels(self.fleet, report)
        agent = report.node, report.agent_id
        return ReportReply(
            version=PROTOCOL_VERSION,
            deadlines=find_deadlines(
                report, self.fleet, self.detector, self._pauses.by_job, self.troubles
            ),
            orders=(*self.effects.orders.collect(agent, now), *self.natives.collect(agent, now))[
                :MAX_ORDERS
            ],
            report_interval_s=report_interval_s(len(self.fleet.nodes)),
            missing=node.missing,
            series=self.traces.collect(agent),
        )

    def _begin_to_monitor(self, name: str, error: Exception | None) -> None:
        """Begin to monitor a job of a report. `error`: why its ranks could not be read."""
        try:
            if error is not None:
                raise error
            if name in self.fleet.jobs:
                self._live_job(self.fleet.jobs[name])
        except Exception as failed:
            self.troubles.note(name, READING, failed)
        else:
            self.troubles.end(name, READING)

    async def take_dumps(self, sent: SentBatch) -> DumpReceipt:
        """Process one batch of dumps, and store it before it is acknowledged.

        Raises StoreFailedError if it cannot be stored. It is used as evidence nevertheless, and the
        agent sends it again.
        """
        now, batch = self.clock.now(), sent.batch
        self._record(Dumped(at=now, batch=Raw(sent.body)))
        name = self.fleet.placing.find_label_of_dumps(batch)
        if batch.glance:
            self._take_sample(name, batch, now)
            return DumpReceipt(id=batch.id)
        taken, live = self.fleet.take_dumps(sent, now), self.live.get(name)
        if taken and live is not None:
            live.watch.take_dumps(taken, batch.stacks, now - batch.held_s)
            live.missing_dumps -= len(taken)
            if live.watch.may_use_dumps(live.context.dumps_want, live.missing_dumps, now):
                self._judge_soon(name)
        job, receipt = self.fleet.jobs.get(name), DumpReceipt(id=batch.id)
        sharer = job.sharer if job else batch.owner or name
        saving = self.store_writer.begin_dumps(name, sent, sharer)
        del sent, batch, taken  # a decoded batch is many times as large as its message
        await self.store_writer.wait(saving, "the dumps")
        self.counters.dumps += 1
        return receipt

    def _take_sample(self, name: str, batch: DumpBatch, now: float) -> None:
        live, job = self.live.get(name), self.fleet.jobs.get(name)
        if live is not None and job is not None and live.generation == job.generation.number:
            dumps = job.generation.own(batch)
            live.watch.samples.take(dumps, batch.stacks, now - batch.held_s)

    def tick(self) -> None:
        """Check every job. An error in one job does not stop the checks of the others."""
        now = self.clock.now()
        self._record(Ticked(at=now))
        for job in list(self.fleet.jobs.values()):
            self._guard(job, "taking its step times", partial(job.generation.end_tick, now))
            self._tick_job(job, now)
            self._guard(job, "counting its steps", partial(self._count, job, now))
            self._guard(job, "forgetting it", partial(self._forget_old, job, now))
        self.fleet.drop_old(now)
        self._pauses.fade()
        self._left.tick(now)
        self.store_writer.tick(now)
        self.counters.last_tick_at = now
        self.counters.last_tick_s = self.clock.now() - now

    def _judge_soon(self, name: str) -> None:
        if self._judging is None:
            loop = asyncio.get_running_loop()
            wait_s = max(JUDGE_WITHIN_S, self._judge_again_at - self.clock.now())
            self._judging = loop.call_later(wait_s, self._judge_dirty)
        self._dirty[name] = None

    def _judge_dirty(self) -> None:
        names, self._dirty, self._judging = self._dirty, {}, None
        began = self.clock.now()
        for name in names:
            if name in self.fleet.jobs:
                self._tick_job(self.fleet.jobs[name], self.clock.now())
        now = self.clock.now()
        self._judge_again_at = now + (now - began) * (1 / JUDGE_SHARE - 1)

    def _tick_job(self, job: Job, now: float) -> None:
        self._guard(job, "checking it", lambda: self._check_job(job, self._live_job(job), now))

    def _guard(self, job: Job, what: str, work: Callable[[], None]) -> None:
        if not self.troubles.guard(job.name, what, work, job.sharer):
            self.counters.failed_ticks += 1

    def _count(self, job: Job, now: float) -> None:
        """Add the time since the last tick to the totals of a job."""
        live, gen = self.live.get(job.name), job.generation
        if live is None:
            return
        if live.note_steps(gen, now):
            self.fleet.count_kept(STEPS, job.name, live.steps)
        stall = live.watch.stall
        since = stall.since if stall else None
        lost_s = live.totals.advance(gen.number, gen.step(), live.watch.status, since, now)
        if lost_s and not is_drill(job.name):
            self.counters.lost_rank_seconds += lost_s * gen.world_size

    def _live_job(self, job: Job) -> LiveJob:
        live, number = self.live.get(job.name), job.generation.number
        if live is not None and live.generation == number:
            return live
        if live is not None:
            live.note_aftermath(text := f"attempt {number} began", self.clock.wall())
            self.effects.carry_out(live, None, live.watch.end(text), self.clock.now())
        pauses = self._pauses.of(job.name)
        begun = LiveJob.begin(job.name, number, pauses, self.policy)
        begun.shadow_mode = self.shadow
        if live is not None:
            begun.steps, begun.totals = live.steps, live.totals
        left = self._left.claim(job.name, number)
        if left is not None:
            begun.resume(left, self.clock.now(), self.clock.wall())
        self.live[job.name] = begun
        log.info("job %s: attempt %d seen", job.name, number, extra={"sharer": job.sharer})
        self.store_writer.remember(job, begun)
        return begun

    def _check_job(self, job: Job, live: LiveJob, now: float) -> None:
        gen = job.generation
        if self._hold_back(job, live, now):
            return
        samples = live.watch.samples
        condition = self.detector.judge(gen, self.fleet.nodes, live.pauses, now, samples)
        if condition.kind in (ConditionKind.STEPPING, ConditionKind.SLOW) and not live.has_gone_on(
            gen
        ):
            return
        if condition.stall is not None and live.has_recovered_unseen(gen):
            self.effects.carry_out(live, gen, live.watch.recover(now), now)
        losses = self._find_losses(live, gen, now)
        self.effects.carry_out(live, gen, live.take_losses(losses, gen, now), now)
        live.context = self._stall_context(gen, live, condition, now)
        live.missing_dumps = live.context.dumps_want - live.context.dumps_have
        effects = live.watch.advance(condition, live.context, now)
        self.effects.carry_out(live, gen, effects, now)
        if wants_sample(gen, samples, self.policy, now):
            self._order_sample(live, gen, now)
        self.traces.check(live, gen, now)
        self.natives.check(live, gen, now)
        live.note_condition(condition.kind, now)
        self.fleet.count_kept(CASES, job.name, live.diagnoses)
        if gen.is_paced or condition.kind is ConditionKind.CHANGING:
            self.store_writer.remember(job, live)

    def _order_sample(self, live: LiveJob, gen: Generation, now: float) -> None:
        """Order a sample of every rank of a job without heartbeats."""
        reporting = self.detector.find_reporting(gen.live(), self.fleet.nodes, now)
        ranks = {record.vitals.rank for record in reporting}
        live.watch.samples.begin(ranks, self.policy.no_heartbeat_sample_s, now)
        wanted = DumpsWanted(reason="sample", again=True, sample=True)
        self.effects.order_dumps(live, gen, wanted, now)

    def _hold_back(self, job: Job, live: LiveJob, now: float) -> bool:
        """Return whether the job is not checked yet, and set the reason.

        The reason is a restart of the tower, or too many restarts of the job. A check would report
        ranks as missing that are only not reported yet.
        """
        gen = job.generation
        if reason := job.attempts.explain_refusal(now, self.policy.silence_s):
            live.watch.reason = reason
            return True
        if gen.is_returning(now, self.policy.silence_s):
            live.watch.reason = "the tower was restarted: not all ranks were reported again yet"
            return True
        if gen.recall_wanted and not live.is_recalling:
            gen.recall_wanted, live.is_recalling = False, True
            self.effects.start(self._recall_dumps(live, job))
        return live.is_recalling and bool(gen.known)

    async def _recall_dumps(self, live: LiveJob, job: Job) -> None:
        gen = job.generation
        try:
            # One job at a time: what a read returns is decoded, and many times as large as stored.
            async with self._recalls.take(job.sharer, job.founder):
                await recall_dumps(self.store_writer, self.clock, self.fleet, gen, self._record)
        except Exception as error:
            log.warning("job %s: cannot read its dumps from the store: %s", live.name, error)
        finally:
            live.is_recalling = False
        if self.live.get(live.name) is live:
            self._tick_job(self.fleet.jobs[live.name], self.clock.now())

    def _stall_context(
        self, gen: Generation, live: LiveJob, condition: Condition, now: float
    ) -> StallContext:
        if condition.stall is None:
            return StallContext(typical_s=gen.pace("").typical_s)
        watch, nodes = live.watch, self.fleet.nodes
        stall, samples = watch.prolong(condition.stall), watch.samples
        return stall_context_of(gen, nodes, self.detector, stall, watch.diagnosis, now, samples)

    def _find_losses(self, live: LiveJob, gen: Generation, now: float) -> dict[int, Loss]:
        """Return the ranks lost since `settle_s` seconds before the incident opened."""
        opening = live.watch.opening
        if opening is None or live.watch.status is not Status.HUNG:
            return {}
        stored = {r: loss for r, loss in live.stored_losses.items() if r not in gen.ranks}
        since = opening.at - self.policy.settle_s
        return stored | find_losses(gen, self.fleet.nodes, self.detector, since, now)

    def _forget_old(self, job: Job, now: float) -> None:
        live, longest = self.live.get(job.name), math.inf
        if live is None:
            return
        if self.fleet.is_nearly_full_for(job):
            longest = FORGET_CROWDED_AFTER_S
        ended = live.ended_at is not None and now - live.ended_at > min(longest, FORGET_AFTER_S)
        lost = live.lost_at is not None and now - live.lost_at > min(longest, FORGET_LOST_AFTER_S)
        if ended or lost:
            facts = find_job_facts(job, live)
            closed = live.close_incident(Status.MONITORING_LOST, self.clock.wall(), facts)
            self.feed.publish(Change.CLOSED, closed, facts)
            self.fleet.forget(job.name)
            self.store_writer.forget(job.name, self.fleet.past[job.name])
            self.effects.orders.drop(job.name)
            self.traces.drop(job.name)
            self.natives.drop(job.name)
            self.runner.forget(job.name)
            self._pauses.retain(job.name)
            self.fleet.account.remove((CASES, job.name))
            self.fleet.account.remove((STEPS, job.name))
            del self.live[job.name]
