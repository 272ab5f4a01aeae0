"""Declarations of metrics: name, type, labels and meaning.

The collectors of tower and agent make their series from these values, and docs/metrics.md is
generated from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class MetricKind(Enum):
    """The type of a metric in Prometheus."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric."""

    name: str
    """The name in queries. The name of a counter ends with `_total`."""
    kind: MetricKind
    labels: tuple[str, ...]
    help: str
    """Its meaning: one or more sentences, for /metrics and for the documentation."""


class Sample(NamedTuple):
    """The value of one series now."""

    spec: MetricSpec
    labels: tuple[str, ...]
    """One value for each label of the metric."""
    value: float
    part: str = ""
    """Of a histogram: "_bucket", "_count" or "_sum"."""
    le: str = ""
    """Of a bucket: its upper end."""


def gauge(name: str, labels: str, text: str) -> MetricSpec:
    """Return a gauge. `labels` are names with a space between them."""
    return MetricSpec(name, MetricKind.GAUGE, tuple(labels.split()), text)


def counter(name: str, labels: str, text: str) -> MetricSpec:
    """Return a counter. Raises ValueError if its name does not end with `_total`."""
    if not name.endswith("_total"):
        raise ValueError(f"invalid name of a counter {name!r}: must end with _total")
    return MetricSpec(name, MetricKind.COUNTER, tuple(labels.split()), text)


def histogram(name: str, labels: str, text: str) -> MetricSpec:
    """Return a histogram."""
    return MetricSpec(name, MetricKind.HISTOGRAM, tuple(labels.split()), text)
