"""Prometheus metrics. A scrape computes them from the live state and changes no decision.

On the event loop, a scrape only reads plain values, job by job. A thread makes the page of them.

Labels are bounded: jobs, statuses, open incidents and their first suspects. There is no series for
each rank, pid or text: a series for each of 16,384 ranks would cost more than the whole tower. The
label of a training job is `training_job`, because Prometheus itself sets the label `job`.

A scrape of a Prometheus also shows that on-call may be notified twice: by a direct destination and
by its rules. The tower cannot know which rules it has, nor where its Alertmanager sends alerts.
Alertmanager itself merges both routes, because the labels are the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from watchtower import __version__
from watchtower.alerts.notifier import AlertNotifier
from watchtower.api import metric_table as table
from watchtower.api.job_metrics import (
    STATUSES,
    IncidentMetrics,
    collect_jobs,
    collect_outboxes,
    family_of,
    histogram_of,
    single,
)
from watchtower.api.security import REASONS, Refusals
from watchtower.api.standby import collect_role
from watchtower.fleet.advisories import BY_NAME
from watchtower.jobs.judgement import Judgement
from watchtower.jobs.keeper import Keeper
from watchtower.jobs.progress import is_judged
from watchtower.service.sharing import (
    CALM,
    ENDED,
    IN_TROUBLE,
    OPEN_INCIDENT,
    Contender,
    rank_fairly,
)
from watchtower.tower.counters import Durations
from watchtower.tower.node_incidents import WINDOWS
from watchtower.tower.tower import Tower
from watchtower.views.advisories import count_advisories
from watchtower.views.measures import JobMeasure, is_open, measure_job
from watchtower.views.node import MAX_REASONS, count_unwatched
from watchtower.views.outage import count_open_outages
from watchtower.wire.drills import is_drill
from watchtower.wire.report import OVER_LIMIT
from watchtower.wire.verdict import NOT_JUDGED, TROUBLED, Cause, Status
from watchtower.writing.printable import label

log = logging.getLogger("watchtower.alerts")

SCRAPE_HEADER = "x-prometheus-scrape-timeout-seconds"
"""Prometheus and compatible scrapers send it. Browsers and commands do not."""

MERGED = frozenset({"alertmanager"})
"""Destinations that receive both routes as one alert."""


class TwoRoutes:
    """Warns once, with the first scrape of a Prometheus."""

    def __init__(self, tower: Tower, destinations: Iterable[str]) -> None:
        """`destinations` are the names of the direct destinations."""
        self._tower = tower
        self._doubled = sorted(set(destinations) - MERGED)
        if tower.shadow.everything:
            self._doubled = []

    def note_scrape(self, headers: Mapping[str, str]) -> None:
        """Check the headers of a request for the metrics."""
        if not self._doubled or SCRAPE_HEADER not in headers:
            return
        names = ", ".join(self._doubled)
        text = (
            f"Prometheus scrapes this tower, and the tower also sends alerts to {names}: if this "
            "Prometheus has the alert rules of watchtower, people are notified twice; use one route"
        )
        self._doubled = []
        self._tower.notes.append(text)
        log.warning("%s", text)


MAX_JOBS_SHOWN = 1000
"""Jobs with their own series: at most 38 per job and 21 per incident, 59,000 series."""

MAX_SILENT_SHOWN = 16
"""Silent agents with a series of their own."""

MAX_NODES_SHOWN = 64
"""Nodes with series about their incidents."""

SLICE_S = 0.005
"""Seconds after which a scrape lets the event loop do other work, before the next job."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The values of one scrape. Nothing changes them, so that a thread may read them."""

    jobs: Sequence[JobMeasure]
    open_ids: frozenset[str]
    now: float
    others: Sequence[Metric]
    """Families that are not about single jobs."""


class TowerCollector(Collector):
    """The metrics of a tower. One scrape at a time."""

    def __init__(
        self,
        tower: Tower,
        refusals: Refusals,
        public_url: str = "",
        replies: Mapping[str, Durations] | None = None,
        alerts: AlertNotifier | None = None,
    ) -> None:
        """`replies` are durations of replies to agents, by path."""
        self._outboxes = alerts.outboxes() if alerts else {}
        self._tower, self._refusals = tower, refusals
        self._reasons: dict[str, None] = {OVER_LIMIT: None}
        """Reasons for which ranks were not watched. Their series stay, so that alerts end."""
        self._replies = replies or {}
        self._incidents = IncidentMetrics(public_url)
        self._phases: dict[str, tuple[str, ...]] = {}
        """By job: the phases that have series."""

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family, at once."""
        *_, snapshot = self.measure()
        assert snapshot is not None
        yield from self.make(snapshot)

    def measure(self) -> Iterator[Snapshot | None]:
        """Read the values of a scrape on the event loop. Yields None before each job, and last the
        snapshot."""
        jobs, tower = self._ranked(), self._tower
        names, hidden = [job.name for job in jobs[:MAX_JOBS_SHOWN]], jobs[MAX_JOBS_SHOWN:]
        others = [
            *self._self(),
            *collect_outboxes(self._outboxes, tower.clock.now()),
            _count_by_status(tower, jobs),
            single(table.JOBS_HIDDEN, len(hidden)),
            single(table.INCIDENTS_HIDDEN, sum(map(_has_alert, hidden))),
        ]
        attempts = [job.judged for job in jobs]
        open_ids = {each.incident.id for each in attempts if each.incident and is_open(each)}
        measures, phases = list[JobMeasure](), dict[str, tuple[str, ...]]()
        for name in names:
            yield None
            moment = tower.moment()
            job = moment.find(name)
            if job is None:
                continue  # it was dropped since the scrape began
            measure = measure_job(moment, job, self._phases.get(name, ()))
            measures.append(measure)
            phases[name] = measure.counts.known if measure.counts else ()
        self._phases = phases
        # An incident may open during the scrape. It must not count as closed.
        shown = (each for each in measures if not each.has_died)
        open_ids.update(each.incident.id for each in shown if each.incident)
        yield Snapshot(measures, frozenset(open_ids), tower.clock.now(), others)

    def make(self, snapshot: Snapshot) -> Iterator[Metric]:
        """Yield the metric families of a snapshot."""
        yield from collect_jobs(snapshot.jobs)
        yield from self._incidents.collect(snapshot.jobs, snapshot.open_ids, snapshot.now)
        yield from snapshot.others

    def _ranked(self) -> list[Keeper]:
        """Return all jobs except drills. The first ones get their own series."""
        jobs = [job for job in self._tower.moment().live() if not is_drill(job.name)]
        ranked = rank_fairly(
            Contender(
                owner=job.owner or job.founder,
                urgency=_urgency(job.judged),
                since=_open_since(job.judged),
                name=job.name,
            )
            for job in jobs
        )
        return [self._tower.fleet.jobs[each.name] for each in ranked]

    def _count_unwatched(self) -> dict[str, int]:
        """Return the ranks that are not watched, by reason, and 0 for earlier reasons."""
        counts = count_unwatched(self._tower.moment())
        self._reasons = dict.fromkeys([*counts, *self._reasons][:MAX_REASONS])
        return {reason: counts.get(reason, 0) for reason in self._reasons}

    def _self(self) -> Iterator[Metric]:
        tower, counters, now = self._tower, self._tower.counters, self._tower.clock.now()
        nodes = tower.fleet.nodes
        silent = {
            name: node.seen_at
            for name, node in nodes.items()
            if tower.detector.is_silent(node.reporter, now)
        }
        queued, oldest_s = tower.store_writer.queue()
        values = {
            table.OUTAGES: count_open_outages(tower.moment()),
            table.AGENTS: len(nodes),
            table.AGENTS_SILENT: len(silent),
            table.STORE_FAILING: float(tower.store_writer.failing_since is not None),
            table.STORE_SET_ASIDE: float(tower.store_writer.store.set_aside is not None),
            table.STORE_QUEUE_WRITES: queued,
            table.STORE_QUEUE_OLDEST: oldest_s,
            table.STORED_BYTES: tower.fleet.account.total,
            table.TICK_DURATION: counters.last_tick_s,
            table.TICK_AGE: now - counters.last_tick_at,
            table.REPORTS: counters.reports,
            table.EARLY_REPORTS: counters.early_reports,
            table.DUMPS: counters.dumps,
            table.DIAGNOSES: counters.diagnoses,
            table.DIAGNOSES_KILLED: tower.runner.killed,
            table.LOST_GPU: counters.lost_rank_seconds,
            table.FAILED_TICKS: counters.failed_ticks,
        }
        for spec, value in values.items():
            yield single(spec, value)
        latest = sorted(silent, key=lambda name: (-silent[name], name))[:MAX_SILENT_SHOWN]
        for spec, counts in (
            (table.BUILD_INFO, {__version__: 1}),
            (table.AGENT_SILENT, {label(name): 1 for name in latest}),
            (table.INCIDENTS, {cause.value: counters.incidents[cause] for cause in Cause}),
            (
                table.SHADOW_INCIDENTS,
                {cause.value: counters.shadow_incidents[cause] for cause in Cause},
            ),
            (table.RANKS_UNWATCHED, self._count_unwatched()),
            (table.REFUSED_REQUESTS, {why: self._refusals.counts[why] for why in REASONS}),
        ):
            family = family_of(spec)
            for text, count in counts.items():
                family.add_metric([text], count)
            yield family
        advisories = family_of(table.ADVISORIES)
        for name, count in count_advisories(tower.moment()).items():
            advisories.add_metric([name, BY_NAME[name].level.value], count)
        yield advisories
        yield from collect_role(tower.ownership)
        yield _count_by_node(tower)
        yield _count_feedback(tower)
        yield histogram_of(table.DIAGNOSIS_DURATION, {(): tower.runner.durations})
        yield histogram_of(table.REPLY, {(path,): each for path, each in self._replies.items()})


def _count_by_status(tower: Tower, jobs: Sequence[Keeper]) -> Metric:
    family = family_of(table.JOBS)
    counts = Counter(
        job.judged.watch.status.value
        if is_judged(job.attempt, job.judged.watch, tower.policy)
        else NOT_JUDGED
        for job in jobs
    )
    for status in STATUSES:
        family.add_metric([status], counts[status])
    return family


def _count_by_node(tower: Tower) -> Metric:
    family, wall = family_of(table.NODE_INCIDENTS), tower.clock.wall()
    for window, window_s in WINDOWS.items():
        for node, count in tower.node_incidents.count(window_s, wall).most_common(MAX_NODES_SHOWN):
            family.add_metric([label(node), window], count)
    return family


def _count_feedback(tower: Tower) -> Metric:
    family, counts = family_of(table.VERDICT_FEEDBACK), tower.feedback.count()
    for cause in Cause:
        right, wrong = counts[cause, True], counts[cause, False]
        if right or wrong:
            family.add_metric([cause.value, "true"], right)
            family.add_metric([cause.value, "false"], wrong)
    return family


def _has_alert(job: Keeper) -> bool:
    incident = job.judged.incident
    return is_open(job.judged) and incident is not None and not incident.shadow


def _open_since(live: Judgement) -> float:
    return live.incident.opened_at if live.incident and is_open(live) else 0.0


def _urgency(live: Judgement) -> int:
    if is_open(live):
        return OPEN_INCIDENT
    if live.watch.status in TROUBLED:
        return IN_TROUBLE
    return ENDED if live.watch.status is Status.ENDED else CALM


class _Page(Collector):
    """The families of one page."""

    def __init__(self, *parts: Iterable[Metric]) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        for part in self._parts:
            yield from part


class Scraper:
    """Makes the page of metrics without blocking the event loop for long."""

    def __init__(self, collector: TowerCollector) -> None:
        self._collector = collector
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        self._lock = asyncio.Lock()

    async def scrape(self) -> bytes:
        """Return the page. Scrapes at the same time wait for each other."""
        async with self._lock:
            snapshot, began = None, time.perf_counter()
            for taken in self._collector.measure():
                snapshot = taken
                if time.perf_counter() - began > SLICE_S:
                    await asyncio.sleep(0)
                    began = time.perf_counter()
            assert snapshot is not None
            return await asyncio.to_thread(self._render, snapshot)

    def _render(self, snapshot: Snapshot) -> bytes:
        return generate_latest(_Page(self._collector.make(snapshot), self._process.collect()))


def metrics_route(
    tower: Tower,
    refusals: Refusals,
    public_url: str = "",
    replies: Mapping[str, Durations] | None = None,
    alerts: AlertNotifier | None = None,
) -> Route:
    """Return the /metrics route. `public_url` is the tower's address in texts of alerts."""
    scraper = Scraper(TowerCollector(tower, refusals, public_url, replies, alerts))

    routes = TwoRoutes(tower, alerts.outboxes() if alerts else ())

    async def get_metrics(request: Request) -> Response:
        routes.note_scrape(request.headers)
        body = await scraper.scrape()
        return Response(body, media_type="text/plain; version=0.0.4; charset=utf-8")

    return Route("/metrics", get_metrics)
