"""The tower: it receives reports and dumps, and produces verdicts and orders.

Everything here runs on one event loop. `jobs` makes the decisions, and `effects.py` executes them.
An error in the handling of one job does not affect other jobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from msgspec import Raw

from watchtower.fleet.configuration import Configurations
from watchtower.fleet.fleet import CASES, STEPS, Fleet
from watchtower.fleet.report_interval import report_interval_s
from watchtower.incidents.incident import NO_SHADOW, Incident, ShadowMode
from watchtower.jobs.keeper import Keeper
from watchtower.jobs.pace import FADE_A_DAY
from watchtower.jobs.verdicts import close
from watchtower.policy import Policy
from watchtower.store.protocol import Store
from watchtower.store.values import StartupState
from watchtower.tower.acts import Acks, Feedbacks, Silences
from watchtower.tower.clock import Clock, SteadyWall
from watchtower.tower.counters import Counters
from watchtower.tower.deadlines import find_deadlines
from watchtower.tower.diagnosis_runner import MakeRunner
from watchtower.tower.effects import Effects
from watchtower.tower.examination import Examinations
from watchtower.tower.incident_events import Change, IncidentFeed, IncidentListener
from watchtower.tower.node_incidents import NodeIncidents
from watchtower.tower.ownership import REPORTED_S, Ownership
from watchtower.tower.recent_answers import RecentAnswers
from watchtower.tower.recording import Dumped, Record, Reported, Ticked, Traced, unrecorded
from watchtower.tower.store_writer import DAY_S, StoreWriter, recall_dumps
from watchtower.tower.troubles import Troubles
from watchtower.tower.turns import Turns
from watchtower.views.moment import Moment
from watchtower.views.rank import LiveGrids
from watchtower.wire import PROTOCOL_VERSION
from watchtower.wire.drills import is_drill
from watchtower.wire.dumps import DumpReceipt, SentBatch
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import Report
from watchtower.wire.series import SeriesBatch
from watchtower.wire.verdict import Status

log = logging.getLogger("watchtower.tower")

LEFT_OPEN_S = 600.0
"""Seconds that an incident of the last run stays open while its job is not reported."""

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
        self.configurations = Configurations()
        self.advisories_off = frozenset[str]()
        """Names of advisories that the operator does not want to see."""
        self.policy = policy
        self.fleet = Fleet(policy)
        self.detector = self.fleet.detector
        self.store_writer = StoreWriter(store, clock)
        self.ownership = Ownership(store)
        self.node_incidents = NodeIncidents(startup.blames, startup.named)
        self.feed = IncidentFeed([self.store_writer, self.node_incidents, *listeners])
        self.silences = Silences(self.store_writer, startup.silences, clock, record)
        self.similar = RecentAnswers[Any]()
        """Which earlier incidents are like one, by incident and what is compared."""
        self.drawings = RecentAnswers[Any]()
        """The drawn series of incidents, with about 20 kB each. The same messages and suspects
        always give the same drawing."""
        self.feedback = Feedbacks(self.store_writer, startup.feedback, clock, record)
        self.acks = Acks(self.store_writer, self.feed, self.fleet.jobs, clock, record)
        self.clock = clock
        self._steady = SteadyWall()
        self.troubles = Troubles(self.fleet.jobs)
        self.counters = Counters(last_tick_at=clock.now())
        self._started_at, self._faded_on = clock.now(), int(clock.wall() // DAY_S)
        self._recalls = Turns(1, clock)
        self.runner = make_runner(clock, record)
        self.effects = Effects(
            self.fleet,
            clock,
            self.store_writer,
            self.feed,
            self.runner,
            self.counters,
            self._recall_dumps,
        )
        self.examinations = Examinations(self.fleet, clock, self.effects, self.runner, record)
        self.grids = LiveGrids()
        self._left: dict[str, Incident] = {}
        """The latest incident of jobs from the last run, until they are reported again."""
        self._recall(startup)
        self._dirty: list[Keeper] = []
        """Jobs to judge, in the order of their dumps: a replay judges them in the same order."""
        self._judging: asyncio.TimerHandle | None = None
        self._judge_again_at = float("-inf")

    def _recall(self, startup: StartupState) -> None:
        """Continue with the jobs and the outages of the last run."""
        self.fleet.recall(startup.attempts, startup.pauses)
        for incident in startup.incidents:  # oldest first
            if incident.job in self._left:
                self._close_left(self._left.pop(incident.job), Status.ENDED)
            self._left[incident.job] = incident
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

    def moment(self) -> Moment:
        """Return the live state now, for views."""
        now, wall = self.clock.now(), self.clock.wall()
        return Moment(
            now=now,
            wall=wall,
            offset_s=self._steady.offset_s(now, wall),
            keepers=self.fleet.jobs,
            nodes=self.fleet.nodes,
            detector=self.detector,
            silence_of=self.silences.find,
            configurations=self.configurations,
            advisories_off=self.advisories_off,
        )

    def must_wait(self, jobs: Iterable[str], waited_s: float) -> bool:
        """Return whether an alert about jobs that is not stored must wait for the store."""

        def is_reported() -> bool:
            known = (self.fleet.jobs[job] for job in jobs if job in self.fleet.jobs)
            now = self.clock.now()
            ranks = (rank for keeper in known for rank in keeper.attempt.live())
            return all(now - rank.seen_at < REPORTED_S for rank in ranks)

        return self.ownership.must_wait(waited_s, is_reported)

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
        self.fleet.placing.note_labels(report, node)
        agent = report.node, report.agent_id
        return ReportReply(
            version=PROTOCOL_VERSION,
            deadlines=find_deadlines(report, self.fleet, self.troubles),
            orders=self.effects.orders.collect(agent, now),
            report_interval_s=report_interval_s(len(self.fleet.nodes)),
            missing=node.missing,
            series=self.effects.orders.collect_series(agent),
            wanted=self.configurations.take(report),
        )

    def _begin_to_monitor(self, name: str, error: Exception | None) -> None:
        """Begin to monitor a job of a report. `error`: why its ranks could not be read."""
        try:
            if error is not None:
                raise error
            if name in self.fleet.jobs:
                self._begin(self.fleet.jobs[name])
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
        if batch.sample:
            if name in self.fleet.jobs:
                self.fleet.jobs[name].take_sample(batch, now - batch.held_s)
            return DumpReceipt(id=batch.id)
        taken, keeper = self.fleet.take_dumps(sent, now), self.fleet.jobs.get(name)
        receipt = DumpReceipt(id=batch.id)
        if keeper and keeper.use_dumps(taken, batch.stacks, now - batch.held_s, now):
            self._judge_soon(keeper)
        sharer = keeper.sharer if keeper else batch.owner or name
        saving = self.store_writer.begin_dumps(name, sent, sharer)
        del sent, batch, taken  # a decoded batch is many times as large as its message
        await self.store_writer.wait(saving, "the dumps")
        self.counters.dumps += 1
        return receipt

    async def take_series(self, batch: SeriesBatch, body: bytes) -> DumpReceipt:
        """Store series of the current incident of a job, from the node of its ranks.

        Series of another incident, or of a process that is none of its ranks, are dropped: the
        agent need not send them again. Raises StoreFailedError.
        """
        self._record(Traced(at=self.clock.now(), batch=Raw(body)))
        label = self.fleet.placing.find_label(batch.node, batch.job, batch.owner, batch.launch)
        keeper = self.fleet.jobs.get(label)
        tracing = keeper.find_tracing(batch) if keeper is not None else None
        if keeper is not None and tracing is not None:
            saving = self.store_writer.begin_series(batch, body, keeper.sharer)
            await self.store_writer.wait(saving, "the series")
            tracing.take(one.rank for one in batch.series)
        return DumpReceipt(id=batch.id)

    def tick(self) -> None:
        """Check every job. An error in one job does not stop the checks of the others."""
        now = self.clock.now()
        self._record(Ticked(at=now))
        for keeper in list(self.fleet.jobs.values()):
            attempt = keeper.attempt
            self._guard(keeper, "taking its step times", partial(attempt.end_tick, now))
            self._check(keeper, now)
            if keeper.judgement is not None:
                self._guard(keeper, "counting its steps", partial(self._count, keeper, now))
                self._guard(keeper, "forgetting it", partial(self._forget_old, keeper, now))
        self.fleet.drop_old(now)
        self._fade_pauses()
        if now - self._started_at > LEFT_OPEN_S:
            for incident in self._left.values():
                self._close_left(incident, Status.MONITORING_LOST)
            self._left.clear()
        self.store_writer.tick(now)
        self.counters.last_tick_at = now
        self.counters.last_tick_s = self.clock.now() - now

    def _judge_soon(self, keeper: Keeper) -> None:
        if self._judging is None:
            loop = asyncio.get_running_loop()
            wait_s = max(JUDGE_WITHIN_S, self._judge_again_at - self.clock.now())
            self._judging = loop.call_later(wait_s, self._judge_dirty)
        if not keeper.is_check_due:
            keeper.is_check_due = True
            self._dirty.append(keeper)

    def _judge_dirty(self) -> None:
        dirty, self._dirty, self._judging = self._dirty, [], None
        began = self.clock.now()
        for keeper in dirty:
            keeper.is_check_due = False
            if self.fleet.jobs.get(keeper.name) is keeper:
                self._check(keeper, self.clock.now())
        now = self.clock.now()
        self._judge_again_at = now + (now - began) * (1 / JUDGE_SHARE - 1)

    def _check(self, keeper: Keeper, now: float) -> None:
        def check() -> None:
            self._begin(keeper)
            effects = keeper.check(self.fleet.nodes, now, self.clock.wall())
            self.effects.carry_out(keeper, effects, now)
            self.fleet.count_kept(CASES, keeper.name, keeper.judged.diagnoses)

        self._guard(keeper, "checking it", check)

    def _guard(self, keeper: Keeper, what: str, work: Callable[[], None]) -> None:
        if not self.troubles.guard(keeper, what, work):
            self.counters.failed_ticks += 1

    def _begin(self, keeper: Keeper) -> None:
        """Watch the present attempt of a job, if it is not watched yet."""
        if keeper.is_begun:
            return
        left = self._left.pop(keeper.name, None)
        if left is not None and left.generation != keeper.attempt.number:
            self._close_left(left, Status.ENDED)
            left = None
        now, wall = self.clock.now(), self.clock.wall()
        self.effects.carry_out(keeper, keeper.begin(left, self.shadow, now, wall), now)

    def _close_left(self, incident: Incident, status: Status) -> None:
        """Close an incident of the last run whose attempt is not reported any more."""
        if incident.closed_at is None:
            self.feed.publish(Change.CLOSED, close(incident, status, self.clock.wall()))

    def _fade_pauses(self) -> None:
        """Shorten all pauses once a day."""
        days = int(self.clock.wall() // DAY_S) - self._faded_on
        if days > 0:
            self._faded_on += days
            self.fleet.fade_pauses(FADE_A_DAY**days)
            self.store_writer.fade_pauses(FADE_A_DAY**days)

    def _count(self, keeper: Keeper, now: float) -> None:
        """Add the time since the last tick to the totals of a job."""
        if keeper.note_steps(now):
            self.fleet.count_kept(STEPS, keeper.name, keeper.steps)
        lost_s = keeper.count_lost_s(now)
        if not is_drill(keeper.name):
            self.counters.lost_rank_seconds += lost_s

    async def _recall_dumps(self, keeper: Keeper) -> None:
        judgement = keeper.judged
        try:
            # One job at a time: what a read returns is decoded, and many times as large as stored.
            async with self._recalls.take(keeper.sharer, keeper.founder):
                attempt = judgement.attempt
                await recall_dumps(self.store_writer, self.clock, self.fleet, attempt, self._record)
        except Exception as error:
            log.warning("job %s: cannot read its dumps from the store: %s", keeper.name, error)
        finally:
            judgement.is_recalling = False
        if self.effects.is_current(keeper, judgement):
            self._check(keeper, self.clock.now())

    def _forget_old(self, keeper: Keeper, now: float) -> None:
        """Drop a job that ended, or was last reported, long ago."""
        if not keeper.is_over(now, crowded=self.fleet.is_nearly_full_for(keeper)):
            return
        wall, facts = self.clock.wall(), keeper.facts()
        closed = keeper.judged.close_incident(Status.MONITORING_LOST, wall, facts)
        self.feed.publish(Change.CLOSED, closed)
        self.fleet.forget(keeper.name)
        self.store_writer.forget(keeper.name, self.fleet.past[keeper.name].last)
