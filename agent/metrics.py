"""The agent's metrics for Prometheus. CPU and memory come from the client library."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    start_http_server,
)

from agent import __version__
from agent import metric_table as table
from agent.delivery.dump_queue import Loss
from watchtower.metric_spec import MetricSpec

log = logging.getLogger(__name__)

_Kind = TypeVar("_Kind", Gauge, Counter)

TICK_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""A tick takes 1 to 2 ms. From 5 ms on it exceeds the budget at one tick per second."""


class Metrics:
    """Everything in `/metrics`, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.ranks = self._make(Gauge, table.RANKS)
        self.report_failures = self._make(Counter, table.REPORT_FAILURES)
        self.dumps = self._make(Counter, table.DUMPS)
        self._dumps_waiting = self._make(Gauge, table.DUMPS_WAITING)
        self._dumps_dropped = self._make(Counter, table.DUMPS_DROPPED)
        for loss in Loss:
            self._dumps_dropped.labels(reason=loss.value)
        self.tick_duration = Histogram(
            table.TICK_DURATION.name,
            table.TICK_DURATION.help,
            buckets=TICK_BUCKETS_S,
            registry=self.registry,
        )
        self._make(Gauge, table.BUILD_INFO).labels(version=__version__).set(1)

    def _make(self, kind: type[_Kind], spec: MetricSpec) -> _Kind:
        return kind(spec.name, spec.help, spec.labels, registry=self.registry)

    def count_dump(self, outcome: str) -> None:
        """Count one dumped rank."""
        self.dumps.labels(outcome=outcome).inc()

    def count_loss(self, loss: Loss) -> None:
        """Count one lost batch of dumps."""
        self._dumps_dropped.labels(reason=loss.value).inc()

    def show_waiting(self, count: Callable[[], int]) -> None:
        """Set the function that returns how many batches wait. It is called at each scrape."""
        self._dumps_waiting.set_function(count)

    def serve(self, host: str, port: int) -> str:
        """Serve `/metrics` and return its URL; "" if the port is in use. The agent runs in both
        cases.
        """
        try:
            server, _ = start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            log.warning("no metrics: cannot listen on %s:%d: %s", host, port, error.strerror)
            return ""
        return f"http://{host}:{server.server_port}/metrics"
