"""Metrics of the outboxes of direct destinations. Without destinations there are no series."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import Metric

from watchtower.alerts.outbox import Outbox
from watchtower.api import metric_table as table
from watchtower.api.families import family_of


def collect_outboxes(outboxes: Mapping[str, Outbox], now: float) -> list[Metric]:
    """Return the metric families of the outboxes, by the name of the destination.

    Call it on the tower's event loop.
    """
    waiting, oldest = family_of(table.OUTBOX_WAITING), family_of(table.OUTBOX_OLDEST)
    deliveries, failures = family_of(table.OUTBOX_DELIVERIES), family_of(table.OUTBOX_FAILURES)
    for name, outbox in outboxes.items():
        waiting.add_metric([name], outbox.count_waiting())
        oldest.add_metric([name], outbox.oldest_s(now))
        deliveries.add_metric([name], outbox.deliveries)
        failures.add_metric([name], outbox.failures)
    return [waiting, oldest, deliveries, failures]
