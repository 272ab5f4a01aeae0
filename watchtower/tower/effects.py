"""Executes the effects that detection returns: rows in the store, orders to agents, diagnoses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from functools import partial

from watchtower.fleet.fleet import Fleet
from watchtower.incidents.incident import Incident, JobFacts
from watchtower.incidents.outages import Outages
from watchtower.jobs.case_inputs import CaseInputs, collect_case_inputs, is_dumped_since
from watchtower.jobs.detector import Detector
from watchtower.jobs.dump_timing import jitter_s
from watchtower.jobs.effects import (
    DiagnosisWanted,
    DumpsWanted,
    Effect,
    IncidentClosed,
    IncidentOpened,
    IncidentUpdated,
    PauseLearned,
    StatusChanged,
)
from watchtower.jobs.generation import Generation
from watchtower.jobs.roster import Job
from watchtower.tower.clock import Clock
from watchtower.tower.counters import Counters
from watchtower.tower.diagnosis_result import run_diagnosis
from watchtower.tower.diagnosis_runner import Runner
from watchtower.tower.incident_events import Change, IncidentFeed
from watchtower.tower.job_facts import find_job_facts
from watchtower.tower.live import PAUSES, LiveJob
from watchtower.tower.order_book import OrderBook, find_asked
from watchtower.tower.store_writer import StoreWriter
from watchtower.wire.verdict import Cause, Verdict
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean, format_percent, name_nodes

log = logging.getLogger("watchtower.tower")

REST = 2.0
"""After a diagnosis, the next one of the job begins at the earliest after this multiple of its
duration. A large diagnosis delays the messages of all jobs: with one right after the other, the
dumps of 16,384 ranks were confirmed up to 30 s late."""


class Effects:
    """Executes effects for a tower, also those that follow from a diagnosis."""

    def __init__(
        self,
        fleet: Fleet,
        detector: Detector,
        clock: Clock,
        store_writer: StoreWriter,
        feed: IncidentFeed,
        runner: Runner,
        live: Mapping[str, LiveJob],
        counters: Counters,
    ) -> None:
        """`live` are the monitored jobs. A diagnosis of a job that is not in it is dropped."""
        self._fleet, self._detector, self._clock = fleet, detector, clock
        self._store_writer, self._feed, self._runner = store_writer, feed, runner
        self._live, self._counters = live, counters
        self.orders = OrderBook()
        self.outages = Outages()
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Start a task. `close` cancels it."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def close(self) -> None:
        """Cancel all tasks and wait for their end."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def carry_out(
        self, live: LiveJob, gen: Generation | None, effects: list[Effect], now: float
    ) -> None:
        """Execute the effects on a job, in order. `gen` is None if its attempt is over."""
        job = self._fleet.jobs[live.name]
        sharer = job.sharer
        for effect in effects:
            match effect:
                case StatusChanged(before=before, after=after, reason=reason):
                    words = (live.name, before.value, after.value, reason)
                    log.info("job %s: %s -> %s, %s", *words, extra={"sharer": sharer})
                case DumpsWanted() if gen is not None:
                    self.order_dumps(live, gen, effect, now)
                case DiagnosisWanted() if gen is not None:
                    self._start_diagnosis(live, gen, now)
                case PauseLearned(pause=pause):
                    self._store_writer.save_pause(live.name, pause, sharer)
                    self._fleet.count_kept(PAUSES, live.name, live.pauses)
                case IncidentOpened() | IncidentUpdated() | IncidentClosed():
                    facts = find_job_facts(job, live)
                    earlier = live.incident
                    change, incident = self._change_incident(live, effect, sharer, facts, now)
                    _log_incident(change, earlier, incident, sharer)
                    self._feed.publish(change, incident, facts)

    def _change_incident(
        self,
        live: LiveJob,
        effect: IncidentOpened | IncidentUpdated | IncidentClosed,
        sharer: str,
        facts: JobFacts,
        now: float,
    ) -> tuple[Change, Incident | None]:
        wall = self._clock.wall()
        match effect:
            case IncidentOpened():
                incident = live.open_incident(
                    self._clock.new_id(f"incident of {live.name}"),
                    now,
                    wall,
                    self.outages,
                    sharer,
                    facts,
                )
                self._counters.count_incident(incident)
                return Change.OPENED, incident
            case IncidentUpdated():
                was_shadow = live.incident is not None and live.incident.shadow
                updated = live.update_incident(now, wall, facts)
                if updated is not None and was_shadow and not updated.shadow:
                    self._counters.count_incident(updated)
                return Change.UPDATED, updated
            case IncidentClosed():
                return Change.CLOSED, live.close_incident(live.watch.status, wall, facts)

    def order_dumps(self, live: LiveJob, gen: Generation, wanted: DumpsWanted, now: float) -> None:
        """Order dumps of an attempt from the agents that report its ranks."""
        since = live.watch.stall.since if live.watch.stall else now
        asked = find_asked(
            record for record in gen.live() if wanted.again or not is_dumped_since(record, since)
        )
        self.orders.place(
            asked,
            gen.job,
            self._clock.new_id(f"dumps of {gen.job}"),
            now,
            sample=wanted.sample,
            jitter_s=max(wanted.spread_s, jitter_s(len(gen.ranks))),
        )

    def _start_diagnosis(self, live: LiveJob, gen: Generation, now: float) -> None:
        if live.is_diagnosing:
            live.is_asked_again = True
            return
        if live.may_be_over(gen, now):
            return
        live.is_diagnosing, live.is_asked_again = True, False
        live.collected_at = asyncio.get_running_loop().time()
        self.start(self._diagnose(live, gen, self._fleet.jobs[live.name]))

    def _collect_inputs(self, live: LiveJob, gen: Generation) -> CaseInputs:
        nodes, watch, now = self._fleet.nodes, live.watch, self._clock.now()
        live.is_asked_again = False  # dumps that arrived during the wait are included
        live.collected_at = asyncio.get_running_loop().time()
        return collect_case_inputs(gen, nodes, self._detector, watch.stall, watch.wait_counts, now)

    async def _diagnose(self, live: LiveJob, gen: Generation, job: Job) -> None:
        try:
            await self._diagnose_once(live, gen, job)
            took_s = asyncio.get_running_loop().time() - live.collected_at
            await asyncio.sleep(REST * took_s)
        finally:
            live.is_diagnosing = False
        if live.is_asked_again and self._live.get(live.name) is live:
            self._start_diagnosis(live, gen, self._clock.now())

    async def _diagnose_once(self, live: LiveJob, gen: Generation, job: Job) -> None:
        asked, again = live.question(), live.watch.diagnosis is not None
        take = partial(self._collect_inputs, live, gen)
        earlier = live.diagnoses.earlier
        result = await run_diagnosis(
            self._runner, job.name, job.sharer, job.founder, take, earlier, again=again
        )
        now = self._clock.now()
        self._counters.diagnoses += 1
        if self._live.get(live.name) is not live:
            return  # another attempt has begun
        is_better = not result.diagnosis.why_not or live.watch.diagnosis is None
        if is_better and asked == live.question():  # else it is about a stall that is over
            self.carry_out(live, gen, live.take_diagnosis(result, now, self._clock.wall()), now)


def _log_incident(
    change: Change, earlier: Incident | None, incident: Incident | None, sharer: str
) -> None:
    """Log an incident that opens or closes, or whose verdict names another cause or other ranks."""
    if incident is None:
        return
    found = _name_verdict(incident.verdict)
    if change is Change.UPDATED and earlier and found == _name_verdict(earlier.verdict):
        return
    word = "has another verdict" if change is Change.UPDATED else change.value
    words = (incident.job, incident.id, word, found)
    log.info("job %s: incident %s %s: %s", *words, extra={"sharer": sharer})


def _name_verdict(verdict: Verdict) -> str:
    """Return "dataloader_stall (93 %), rank 3 on gpu-042"."""
    cause = verdict.cause or Cause.UNKNOWN
    sure = "" if cause is Cause.UNKNOWN else f" ({format_percent(verdict.confidence)})"
    if not verdict.suspects:
        return f"{cause.value}{sure}, no rank named"
    ranks = clean(name_ranks(suspect.rank for suspect in verdict.suspects), 120)
    nodes = name_nodes(list(dict.fromkeys(suspect.node for suspect in verdict.suspects)))
    return f"{cause.value}{sure}, {ranks} on {nodes}"
