"""Prometheus metrics. A scrape computes them from the live state and changes nothing.

Labels are bounded: jobs, statuses, open incidents and their first suspect. There are no labels for
ranks, pids or texts: a series for each of 16,384 ranks would cost more than the whole tower. The
label of a training job is `training_job`, because Prometheus itself sets the label `job`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from watchtower import __version__
from watchtower.alerts.notifier import AlertNotifier
from watchtower.api.incident_metrics import IncidentMetrics, is_open
from watchtower.api.outbox_metrics import OutboxMetrics
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
from watchtower.printable import label
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
        yield GaugeMetricFamily(
            "watchtower_jobs_hidden", "Live jobs without their own series.", value=len(hidden)
        )
        yield GaugeMetricFamily(
            "watchtower_incidents_hidden",
            "Open incidents without their own series. Alerts do not fire for them.",
            value=sum(map(is_open, hidden)),
        )

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
        of_job = ["training_job"]
        status = GaugeMetricFamily(
            "watchtower_job_status",
            "1 for the current status of a job, 0 for the others.",
            labels=[*of_job, "status"],
        )
        step = GaugeMetricFamily(
            "watchtower_job_step", "Lowest step that every rank has completed.", labels=of_job
        )
        typical = GaugeMetricFamily(
            "watchtower_job_typical_step_seconds",
            "95th percentile of the duration of steps outside phases.",
            labels=of_job,
        )
        suspects = GaugeMetricFamily(
            "watchtower_job_suspects", "Ranks named by the current verdict.", labels=of_job
        )
        muted = GaugeMetricFamily(
            "watchtower_job_muted", "1 while the job's alerts are silenced.", labels=of_job
        )
        info = GaugeMetricFamily(
            "watchtower_job_info",
            "Always 1. The labels of a job come from the environment of its ranks.",
            labels=[*of_job, *LABELS],
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
        info = GaugeMetricFamily("watchtower_build_info", "Always 1.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        gauges = {
            "watchtower_agents": ("Agents that have ever reported.", len(tower.fleet.nodes)),
            "watchtower_agents_silent": ("Agents that stopped reporting.", silent),
            "watchtower_store_failing": (
                "1 while the store cannot be written.",
                float(tower.store_writer.failing_since is not None),
            ),
            "watchtower_store_set_aside": (
                "1 if this tower created an empty store because the file was damaged.",
                float(tower.store_writer.store.set_aside is not None),
            ),
            "watchtower_stored_bytes": (
                "Bytes of memory that jobs and nodes use in addition to a record of each rank.",
                tower.fleet.account.total,
            ),
            "watchtower_tick_duration_seconds": (
                "Duration of the last check of all jobs.",
                counters.last_tick_s,
            ),
            "watchtower_tick_age_seconds": ("Time since that check.", now - counters.last_tick_at),
        }
        for name, (text, gauge) in gauges.items():
            yield GaugeMetricFamily(name, text, value=gauge)
        totals = {
            "watchtower_reports": ("Reports accepted.", counters.reports),
            "watchtower_dumps": ("Batches of dumps accepted.", counters.dumps),
            "watchtower_diagnoses": ("Diagnoses made.", counters.diagnoses),
            "watchtower_incidents": ("Incidents opened.", counters.incidents),
            "watchtower_refused_jobs": (
                "Ranks that are not monitored because there are too many jobs or ranks.",
                tower.fleet.refused_jobs,
            ),
            "watchtower_deferred_claims": (
                "Processes not monitored for now because their job began too many attempts.",
                tower.fleet.deferred_claims,
            ),
            "watchtower_failed_ticks": ("Checks of a job that failed.", counters.failed_ticks),
        }
        for name, (text, total) in totals.items():
            yield CounterMetricFamily(name, text, value=total)
        refused = CounterMetricFamily(
            "watchtower_refused_requests", "Requests refused.", labels=["reason"]
        )
        for reason in REASONS:
            refused.add_metric([reason], self._refusals.counts[reason])
        yield refused


def _count_by_status(jobs: Sequence[LiveJob]) -> Metric:
    family = GaugeMetricFamily("watchtower_jobs", "Live jobs by status.", labels=["status"])
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


def metrics_route(
    tower: Tower, refusals: Refusals, public_url: str = "", alerts: AlertNotifier | None = None
) -> Route:
    """Return the /metrics route. `public_url` is the tower's address in texts of alerts."""
    registry = CollectorRegistry()
    registry.register(TowerCollector(tower, refusals, public_url))
    if alerts is not None:
        registry.register(OutboxMetrics(alerts, tower.clock))
    ProcessCollector(registry=registry)

    async def get_metrics(_: Request) -> Response:
        body = generate_latest(registry)
        return Response(body, media_type="text/plain; version=0.0.4; charset=utf-8")

    return Route("/metrics", get_metrics)
