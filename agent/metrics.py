"""The agent's metrics for Prometheus. CPU and memory come from the client library."""

from __future__ import annotations

import logging
from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    start_http_server,
)

from agent import __version__
from agent.delivery.dump_queue import Loss

log = logging.getLogger(__name__)

TICK_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""A tick takes 1 to 2 ms. From 5 ms on it exceeds the budget at one tick per second."""


class Metrics:
    """Everything in `/metrics`, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.ranks = Gauge(
            "watchtower_agent_ranks", "Living ranks watched on this node.", registry=self.registry
        )
        self.report_failures = Counter(
            "watchtower_agent_report_failures",
            "Reports that the tower did not accept.",
            registry=self.registry,
        )
        self.dumps = Counter(
            "watchtower_agent_dumps",
            "Ranks dumped, by outcome: ok, or the kind of failure.",
            ["outcome"],
            registry=self.registry,
        )
        self._dumps_waiting = Gauge(
            "watchtower_agent_dumps_waiting",
            "Batches of dumps that the tower does not have yet, in memory or in the spool.",
            registry=self.registry,
        )
        self._dumps_dropped = Counter(
            "watchtower_agent_dumps_dropped",
            "Batches of dumps that will never reach the tower, by reason.",
            ["reason"],
            registry=self.registry,
        )
        for loss in Loss:
            self._dumps_dropped.labels(reason=loss.value)
        self.tick_duration = Histogram(
            "watchtower_agent_tick_duration_seconds",
            "Time that one check of all ranks took.",
            buckets=TICK_BUCKETS_S,
            registry=self.registry,
        )
        Gauge(
            "watchtower_agent_build_info",
            "Always 1; the version is the label.",
            ["version"],
            registry=self.registry,
        ).labels(version=__version__).set(1)

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
