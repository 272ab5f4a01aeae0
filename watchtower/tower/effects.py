"""Carries out what keepers want: rows in the store, orders to agents, diagnoses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable

from watchtower.fleet.fleet import PAUSES, Fleet
from watchtower.fleet.half_started import with_holders
from watchtower.incidents.incident import Incident
from watchtower.incidents.outages import Outages
from watchtower.jobs.case_inputs import CaseInputs
from watchtower.jobs.effects import (
    AttemptBegun,
    DiagnosisWanted,
    DumpsWanted,
    Effect,
    IncidentClosed,
    IncidentOpened,
    IncidentUpdated,
    PauseLearned,
    RecallWanted,
    SeriesWanted,
    StatusChanged,
    StoreWanted,
)
from watchtower.jobs.judgement import Judgement
from watchtower.jobs.keeper import Keeper
from watchtower.tower.clock import Clock
from watchtower.tower.counters import Counters
from watchtower.tower.diagnosis_runner import Runner, run_diagnosis
from watchtower.tower.dispatcher import Dispatcher
from watchtower.tower.incident_events import Change, IncidentFeed
from watchtower.tower.store_writer import StoreWriter
from watchtower.wire.verdict import Cause, Verdict
from watchtower.writing.ranksets import format_ranks, name_ranks
from watchtower.writing.text import clean, format_percent, name_nodes

log = logging.getLogger("watchtower.tower")

REST = 2.0
"""After a diagnosis, the next one of the job begins at the earliest after this multiple of its
duration. A large diagnosis delays the messages of all jobs: with one right after the other, the
dumps of 16,384 ranks were confirmed up to 30 s late."""


class Effects:
    """Carries out effects for a tower, also those that follow from a diagnosis."""

    def __init__(
        self,
        fleet: Fleet,
        clock: Clock,
        store_writer: StoreWriter,
        feed: IncidentFeed,
        runner: Runner,
        counters: Counters,
        recall: Callable[[Keeper], Coroutine[None, None, None]],
    ) -> None:
        """`recall` reads dumps of a job from the store."""
        self._fleet, self._clock = fleet, clock
        self._store_writer, self._feed, self._runner = store_writer, feed, runner
        self._counters, self._recall = counters, recall
        self.orders = Dispatcher(clock)
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

    def carry_out(self, keeper: Keeper, effects: Iterable[Effect], now: float) -> None:
        """Carry out the effects on a job, each before the next one is made."""
        for effect in effects:
            self._perform(keeper, effect, now)

    def _perform(self, keeper: Keeper, effect: Effect, now: float) -> None:
        match effect:
            case StatusChanged(before=before, after=after, reason=reason):
                words = (keeper.name, before.value, after.value, reason)
                log.info("job %s: %s -> %s, %s", *words, extra={"sharer": keeper.sharer})
            case DumpsWanted():
                self.orders.order_dumps(keeper, effect, now)
            case SeriesWanted():
                self.orders.order_series(keeper, effect, now)
            case DiagnosisWanted():
                self._start_diagnosis(keeper, now)
            case IncidentOpened() | IncidentUpdated() | IncidentClosed():
                self._change_incident(keeper, effect, now)
            case _:
                self._keep(keeper, effect)

    def _keep(self, keeper: Keeper, effect: Effect) -> None:
        """Write what outlives the tower, or read it."""
        match effect:
            case AttemptBegun():
                words = keeper.name, keeper.attempt.number
                log.info("job %s: attempt %d seen", *words, extra={"sharer": keeper.sharer})
                self._store_writer.remember(keeper)
            case StoreWanted():
                self._store_writer.remember(keeper)
            case RecallWanted():
                self.start(self._recall(keeper))
            case PauseLearned(pause=pause):
                self._store_writer.save_pause(keeper.name, pause, keeper.sharer)
                self._fleet.count_kept(PAUSES, keeper.name, keeper.pauses)

    def _change_incident(
        self, keeper: Keeper, effect: IncidentOpened | IncidentUpdated | IncidentClosed, now: float
    ) -> None:
        judgement, facts, wall = keeper.judged, keeper.facts(), self._clock.wall()
        earlier, changed = judgement.incident, judgement.incident
        match effect:
            case IncidentOpened():
                change, ident = Change.OPENED, self._clock.new_id(f"incident of {keeper.name}")
                outage = self.outages.join(ident, keeper.shared_cause, now)
                sharer = keeper.sharer
                opened = judgement.open_incident(ident, outage, sharer, facts, now, wall)
                self._counters.count_incident(changed := opened)
            case IncidentUpdated():
                change, changed = Change.UPDATED, judgement.update_incident(now, wall, facts)
                if changed is not None and earlier and earlier.shadow and not changed.shadow:
                    self._counters.count_incident(changed)
            case IncidentClosed():
                change = Change.CLOSED
                changed = judgement.close_incident(judgement.watch.status, wall, facts)
        _log_incident(change, earlier, changed, keeper.sharer)
        self._feed.publish(change, changed)

    def is_current(self, keeper: Keeper, judgement: Judgement) -> bool:
        """Return whether a job is live, and this attempt is still the one that is watched."""
        return keeper.judgement is judgement and self._fleet.jobs.get(keeper.name) is keeper

    def _start_diagnosis(self, keeper: Keeper, now: float) -> None:
        judgement = keeper.judged
        if judgement.is_diagnosing:
            judgement.is_asked_again = True
        elif not judgement.may_be_over(now):
            judgement.is_diagnosing, judgement.is_asked_again = True, False
            self.start(self._diagnose(keeper, judgement))

    async def _diagnose(self, keeper: Keeper, judgement: Judgement) -> None:
        try:
            collected_at = await self._diagnose_once(keeper, judgement)
            took_s = asyncio.get_running_loop().time() - collected_at
            await asyncio.sleep(REST * took_s)
        finally:
            judgement.is_diagnosing = False
        if judgement.is_asked_again and self.is_current(keeper, judgement):
            self._start_diagnosis(keeper, self._clock.now())

    async def _diagnose_once(self, keeper: Keeper, judgement: Judgement) -> float:
        """Diagnose an attempt. Return when its evidence was collected, by the event loop."""
        loop = asyncio.get_running_loop()
        collected_at, asked = loop.time(), judgement.question()

        def collect() -> CaseInputs:
            nonlocal collected_at, asked
            # What has happened during the wait is included, and may be the end of the job.
            judgement.is_asked_again, asked = False, judgement.question()
            collected_at = loop.time()
            now, nodes = self._clock.now(), self._fleet.nodes
            inputs = judgement.collect_case(nodes, keeper.detector, now)
            return with_holders(inputs, self._fleet.jobs, nodes, keeper.detector)

        again = judgement.watch.diagnosis is not None
        result = await run_diagnosis(
            self._runner, keeper, collect, judgement.diagnoses.earlier, again=again
        )
        now = self._clock.now()
        self._counters.diagnoses += 1
        is_better = not result.diagnosis.why_not or judgement.watch.diagnosis is None
        # Else another attempt has begun, or the diagnosis is about a stall that is over.
        if self.is_current(keeper, judgement) and is_better and asked == judgement.question():
            effects = judgement.take_diagnosis(result, now, self._clock.wall())
            self.carry_out(keeper, effects, now)
        return collected_at


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
    suspects = incident.verdict.suspects
    fields = {
        "job": clean(incident.job),
        "incident": incident.id,
        "event": change.value,
        "cause": (incident.verdict.cause or Cause.UNKNOWN).value,
        "ranks": format_ranks(suspect.rank for suspect in suspects),
        "nodes": list(dict.fromkeys(clean(each.node) for each in suspects))[:MAX_NODES],
    }
    extra = {"sharer": sharer, "fields": fields}
    log.info("job %s: incident %s %s: %s", *words, extra=extra)


MAX_NODES = 16
"""Nodes in a line of the log."""


def _name_verdict(verdict: Verdict) -> str:
    """Return "dataloader_stall (93 %), rank 3 on gpu-042"."""
    cause = verdict.cause or Cause.UNKNOWN
    sure = "" if cause is Cause.UNKNOWN else f" ({format_percent(verdict.confidence)})"
    if not verdict.suspects:
        return f"{cause.value}{sure}, no rank named"
    ranks = clean(name_ranks(suspect.rank for suspect in verdict.suspects), 120)
    nodes = name_nodes(list(dict.fromkeys(suspect.node for suspect in verdict.suspects)))
    return f"{cause.value}{sure}, {ranks} on {nodes}"
