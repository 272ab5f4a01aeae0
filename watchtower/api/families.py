"""Makes families of samples, as prometheus_client renders them, from declared metrics."""

from __future__ import annotations

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from watchtower.service.metric_spec import MetricKind, MetricSpec
from watchtower.tower.counters import Durations

Family = CounterMetricFamily | GaugeMetricFamily


def family_of(spec: MetricSpec) -> Family:
    """Return an empty family of a gauge or a counter."""
    kind = GaugeMetricFamily if spec.kind is MetricKind.GAUGE else CounterMetricFamily
    return kind(spec.name, spec.help, labels=spec.labels)


def single(spec: MetricSpec, value: float) -> Family:
    """Return the family of a metric without labels."""
    family = family_of(spec)
    family.add_metric([], value)
    return family


def histogram_of(spec: MetricSpec, durations: dict[tuple[str, ...], Durations]) -> Metric:
    """Return the family of a histogram, by the values of its labels."""
    family = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
    for labels, each in durations.items():
        family.add_metric(labels, each.cumulated(), each.total_s)
    return family
