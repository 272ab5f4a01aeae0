"""Prometheus metrics, computed from live state when scraped; a scrape touches nothing else.

Labels are bounded: jobs and statuses, never ranks, pids or text. Which rank it was is in the
verdict; a label for each of 16,384 ranks would cost more than the whole tower.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from watchtower import __version__
from watchtower.api.security import REASONS, Refusals
from watchtower.tower.tower import Tower
from watchtower.wire.verdict import Status

MAX_JOBS_SHOWN = 1000
"""Jobs with series of their own; eight statuses each make 8000 series."""


class TowerCollector(Collector):
    """Reads a tower on the event loop that owns it."""

    def __init__(self, tower: Tower, refusals: Refusals) -> None:
        self._tower = tower
        self._refusals = refusals

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        yield from self._jobs()
        yield from self._self()

    def _jobs(self) -> Iterator[Metric]:
        status = GaugeMetricFamily(
            "watchtower_job_status", "1 for the status a job is in.", labels=["job", "status"]
        )
        step = GaugeMetricFamily(
            "watchtower_job_step", "Lowest step that every rank has beaten.", labels=["job"]
        )
        typical = GaugeMetricFamily(
            "watchtower_job_typical_step_seconds", "p95 of plain steps.", labels=["job"]
        )
        suspects = GaugeMetricFamily(
            "watchtower_job_suspects", "Ranks named by the current verdict.", labels=["job"]
        )
        muted = GaugeMetricFamily(
            "watchtower_job_muted", "1 while the job pages nobody.", labels=["job"]
        )
        acked = GaugeMetricFamily(
            "watchtower_job_acked",
            "1 while somebody looks after its open incident.",
            labels=["job"],
        )
        for name in sorted(self._tower.live)[:MAX_JOBS_SHOWN]:
            live, gen = self._tower.live[name], self._tower.fleet.jobs[name].generation
            for value in Status:
                status.add_metric([name, value.value], float(live.watch.status is value))
            step.add_metric([name], gen.step())
            typical.add_metric([name], gen.pace("").typical_s)
            diagnosis = live.watch.diagnosis
            suspects.add_metric([name], len(diagnosis.suspects) if diagnosis else 0)
            muted.add_metric([name], float(self._tower.paging.mute_of(name) is not None))
            acked.add_metric([name], float(live.is_acked))
        yield from (status, step, typical, suspects, muted, acked)

    def _self(self) -> Iterator[Metric]:
        tower, counters, now = self._tower, self._tower.counters, self._tower.clock.now()
        silent = sum(1 for n in tower.fleet.nodes.values() if tower.detector.is_silent(n, now))
        info = GaugeMetricFamily("watchtower_build_info", "Always 1.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        gauges = {
            "watchtower_jobs": ("Live jobs.", len(tower.live)),
            "watchtower_agents": ("Agents that ever reported.", len(tower.fleet.nodes)),
            "watchtower_agents_silent": ("Agents that stopped reporting.", silent),
            "watchtower_store_failing": (
                "1 while the store cannot be written.",
                float(tower.archive.failing_since is not None),
            ),
            "watchtower_tick_duration_seconds": ("Last look at all jobs.", counters.last_tick_s),
            "watchtower_tick_age_seconds": ("Since that look.", now - counters.last_tick_at),
        }
        for name, (text, gauge) in gauges.items():
            yield GaugeMetricFamily(name, text, value=gauge)
        totals = {
            "watchtower_reports": ("Reports taken.", counters.reports),
            "watchtower_dumps": ("Batches of dumps taken.", counters.dumps),
            "watchtower_diagnoses": ("Diagnoses made.", counters.diagnoses),
            "watchtower_incidents": ("Incidents opened.", counters.incidents),
            "watchtower_refused_jobs": ("Ranks of jobs too many.", tower.fleet.refused_jobs),
            "watchtower_failed_ticks": ("Looks at a job that failed.", counters.failed_ticks),
        }
        for name, (text, total) in totals.items():
            yield CounterMetricFamily(name, text, value=total)
        refused = CounterMetricFamily(
            "watchtower_refused_requests", "Requests refused.", labels=["reason"]
        )
        for reason in REASONS:
            refused.add_metric([reason], self._refusals.counts[reason])
        yield refused


def metrics_route(tower: Tower, refusals: Refusals) -> Route:
    """The /metrics route."""
    registry = CollectorRegistry()
    registry.register(TowerCollector(tower, refusals))
    ProcessCollector(registry=registry)

    async def get_metrics(_: Request) -> Response:
        body = generate_latest(registry)
        return Response(body, media_type="text/plain; version=0.0.4; charset=utf-8")

    return Route("/metrics", get_metrics)
