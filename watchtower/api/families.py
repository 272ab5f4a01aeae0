"""Makes families of samples, as prometheus_client renders them, from declared metrics."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from watchtower.metric_spec import MetricKind, MetricSpec
from watchtower.tower.counters import Durations

Family = CounterMetricFamily | GaugeMetricFamily

MAX_LABEL = 256
"""Characters of a label's value. Names have at most as many, but an escaped name may have more."""

_MARKUP = "\\<>`*~"
"""Characters that chat programs may interpret as a mention, a link, code or markup."""


@lru_cache(maxsize=4096)
def label(text: str) -> str:
    """Return untrusted text as a label value: printable, bounded, without markup of chats.

    Different texts have different values, so that a job cannot imitate another one.
    """
    shown = "".join(c if c.isprintable() and c not in _MARKUP else _escape(c) for c in text)
    if len(shown) <= MAX_LABEL:
        return shown
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{shown[: MAX_LABEL - len(digest) - 1]}~{digest}"


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


def _escape(character: str) -> str:
    number = ord(character)
    if character == "\\":
        return "\\\\"
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"
