"""Metrics of the outboxes of direct destinations. Without destinations there are no series."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from watchtower.alerts.notifier import AlertNotifier
from watchtower.tower.clock import Clock

_LABELS = ["destination"]


class OutboxMetrics(Collector):
    """Collects the metrics of all outboxes. It runs on the tower's event loop."""

    def __init__(self, alerts: AlertNotifier, clock: Clock) -> None:
        self._alerts, self._clock = alerts, clock

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        waiting = GaugeMetricFamily(
            "watchtower_outbox_waiting",
            "Alerts whose current version the destination has not received yet.",
            labels=_LABELS,
        )
        oldest = GaugeMetricFamily(
            "watchtower_outbox_oldest_seconds",
            "Seconds that the oldest of these alerts has waited; 0 if no alert waits.",
            labels=_LABELS,
        )
        deliveries = CounterMetricFamily(
            "watchtower_outbox_deliveries_total",
            "Messages that the destination has accepted.",
            labels=_LABELS,
        )
        failures = CounterMetricFamily(
            "watchtower_outbox_failures_total",
            "Failed attempts to send a message. Each one is retried.",
            labels=_LABELS,
        )
        now = self._clock.now()
        for name, outbox in self._alerts.outboxes().items():
            waiting.add_metric([name], outbox.count_waiting())
            oldest.add_metric([name], outbox.oldest_s(now))
            deliveries.add_metric([name], outbox.deliveries)
            failures.add_metric([name], outbox.failures)
        yield from (waiting, oldest, deliveries, failures)
