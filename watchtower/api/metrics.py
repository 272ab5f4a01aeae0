"""Prometheus metrics. A scrape computes them from the live state and changes nothing.

Labels are bounded: jobs, statuses, open incidents and their first suspect. There are no labels for
ranks, pids or texts: a series for each of 16,384 ranks would cost more than the whole tower. The
label of a training job is `training_job`, because Prometheus itself sets the label `job`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from watchtower import __version__
from watchtower.api import metric_table as table
from watchtower.api.families import family_of, single
from watchtower.api.incident_metrics import IncidentMetrics, is_open, label
from watchtower.api.security import REASONS, Refusals
from watchtower.core.fleet.job import Job
from watchtower.core.fleet.shares import (
    CALM,
    ENDED,
    IN_TROUBLE,
    OPEN_INCIDENT,
    Candidate,
    rank_fairly,
)
from watchtower.tower.live import LiveJob
from watchtower.tower.tower import Tower
from watchtower.wire.drills import is_drill
from watchtower.wire.report import LABELS
from watchtower.wire.verdict import Status

MAX_JOBS_SHOWN = 1000
"""Jobs with their own series: thirteen per job and four per open incident, 17,000 series."""


class TowerCollector(Collector):
    """Collects the metrics of a tower. It runs on the tower's event loop."""

    def __init__(self, tower: Tower, refusals: Refusals, public_url: str = "") -> None:
        self._tower = tower
        self._refusals = refusals
        self._incidents = IncidentMetrics(public_url)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        jobs = self._ranked()
        shown, hidden = jobs[:MAX_JOBS_SHOWN], jobs[MAX_JOBS_SHOWN:]
        open_ids = {live.incident.id for live in jobs if live.incident and is_open(live)}
        yield from self._jobs(shown)
        yield from self._incidents.collect(shown, open_ids, self._tower.clock.now())
        yield from self._self()
        yield _count_by_status(jobs)
        yield single(table.JOBS_HIDDEN, len(hidden))
        yield single(table.INCIDENTS_HIDDEN, sum(map(is_open, hidden)))

    def _ranked(self) -> list[LiveJob]:
        """Return all jobs except drills. The first ones get their own series."""
        tower = self._tower
        ranked = rank_fairly(
            Candidate(
                owner=_key_of(tower.fleet.jobs[live.name]),
                urgency=_urgency(live),
                since=live.incident.opened_at if live.incident and is_open(live) else 0.0,
                name=live.name,
            )
            for live in tower.live.values()
            if not is_drill(live.name)
        )
        return [tower.live[each.name] for each in ranked]

    def _jobs(self, shown: Sequence[LiveJob]) -> Iterator[Metric]:
        status, step, typical = map(
            family_of, (table.JOB_STATUS, table.JOB_STEP, table.JOB_TYPICAL_STEP)
        )
        suspects, muted, info = map(
            family_of, (table.JOB_SUSPECTS, table.JOB_MUTED, table.JOB_INFO)
        )
        for live in shown:
            labels = self._tower.fleet.jobs[live.name].labels
            if labels is not None:
                info.add_metric(
                    [label(live.name), *(label(getattr(labels, key)) for key in LABELS)], 1
                )
            name, gen = label(live.name), self._tower.fleet.jobs[live.name].generation
            for value in Status:
                status.add_metric([name, value.value], float(live.watch.status is value))
            step.add_metric([name], gen.step())
            typical.add_metric([name], gen.pace("").typical_s)
            diagnosis = live.watch.diagnosis
            suspects.add_metric([name], len(diagnosis.suspects) if diagnosis else 0)
            muted.add_metric([name], float(self._tower.silences.find(live.name) is not None))
        yield from (status, step, typical, suspects, muted, info)

    def _self(self) -> Iterator[Metric]:
        tower, counters, now = self._tower, self._tower.counters, self._tower.clock.now()
        silent = sum(1 for n in tower.fleet.nodes.values() if tower.detector.is_silent(n, now))
        info = family_of(table.BUILD_INFO)
        info.add_metric([__version__], 1)
        yield info
        values = {
            table.AGENTS: len(tower.fleet.nodes),
            table.AGENTS_SILENT: silent,
            table.STORE_FAILING: float(tower.store_writer.failing_since is not None),
            table.STORE_SET_ASIDE: float(tower.store_writer.store.set_aside is not None),
            table.STORED_BYTES: tower.fleet.account.total,
            table.TICK_DURATION: counters.last_tick_s,
            table.TICK_AGE: now - counters.last_tick_at,
            table.REPORTS: counters.reports,
            table.DUMPS: counters.dumps,
            table.DIAGNOSES: counters.diagnoses,
            table.INCIDENTS: counters.incidents,
            table.REFUSED_JOBS: tower.fleet.refused_jobs,
            table.DEFERRED_CLAIMS: tower.fleet.deferred_claims,
            table.FAILED_TICKS: counters.failed_ticks,
        }
        for spec, value in values.items():
            yield single(spec, value)
        refused = family_of(table.REFUSED_REQUESTS)
        for reason in REASONS:
            refused.add_metric([reason], self._refusals.counts[reason])
        yield refused


def _count_by_status(jobs: Sequence[LiveJob]) -> Metric:
    family = family_of(table.JOBS)
    counts = Counter(live.watch.status for live in jobs)
    for status in Status:
        family.add_metric([status.value], counts[status])
    return family


def _key_of(job: Job) -> str:
    """Return the owner, or else the founding node, whose share of the places a job uses."""
    return job.owner or job.founder


def _urgency(live: LiveJob) -> int:
    if is_open(live):
        return OPEN_INCIDENT
    if live.watch.status in (Status.HUNG, Status.SUSPECT, Status.SLOW, Status.MONITORING_LOST):
        return IN_TROUBLE
    return ENDED if live.watch.status is Status.ENDED else CALM


def metrics_route(tower: Tower, refusals: Refusals, public_url: str = "") -> Route:
    """Return the /metrics route. `public_url` is the tower's address in texts of alerts."""
    registry = CollectorRegistry()
    registry.register(TowerCollector(tower, refusals, public_url))
    ProcessCollector(registry=registry)

    async def get_metrics(_: Request) -> Response:
        body = generate_latest(registry)
        return Response(body, media_type="text/plain; version=0.0.4; charset=utf-8")

    return Route("/metrics", get_metrics)
