"""Makes families of samples, as prometheus_client renders them, from declared metrics."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from watchtower.metric_spec import MetricKind, MetricSpec

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
