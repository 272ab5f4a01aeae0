"""Metrics of jobs, of open incidents and of the outboxes, made of values that were read before.

The labels of `watchtower_incident_open` never change, so an alert made from them stays one alert.
What a later verdict may correct is on `watchtower_incident_info` alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from watchtower.alerts.labels import AlertLinks, has_alert, identify
from watchtower.alerts.outbox import Outbox
from watchtower.api import metric_table as table
from watchtower.service.metric_spec import MetricKind, MetricSpec
from watchtower.tower.counters import Durations
from watchtower.views.measures import JobMeasure
from watchtower.wire.report import LABELS
from watchtower.wire.verdict import NOT_JUDGED, WORST_FIRST, Status
from watchtower.writing.printable import label

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


STATUSES = (*(status.value for status in Status), NOT_JUDGED)
"""The values of the label `status`."""

STATES = tuple(each for each in reversed(WORST_FIRST) if each is not Status.ENDED)
"""The codes of `watchtower_job_state`, from 0. A job that has ended has no such series."""

NOT_JUDGED_STATE = -1
"""The code of a job of which it is not known whether it is healthy."""


def collect_jobs(jobs: Sequence[JobMeasure]) -> Iterator[Metric]:
    """Yield the metric families of jobs."""
    families = {spec: family_of(spec) for spec in table.JOB_METRICS}
    for job in jobs:
        name = label(job.name)
        _add_values(families, job, name)
        _add_groups(families, job, name)
    yield from families.values()


def _add_values(families: Mapping[MetricSpec, Family], job: JobMeasure, name: str) -> None:
    steps, watched_s, lost_s = job.totals
    for spec, value in (
        (table.JOB_STEP, job.step),
        (table.JOB_STEPS, steps),
        (table.JOB_TYPICAL_STEP, job.typical_step_s),
        (table.JOB_WORLD_SIZE, job.world_size),
        (table.JOB_ATTEMPT, job.attempt),
        (table.JOB_SUSPECTS, job.suspects),
        (table.JOB_SILENCED, job.is_silenced),
        (table.JOB_SHADOW, job.is_shadow),
        (table.JOB_WATCHED, watched_s),
        (table.JOB_LOST, lost_s),
    ):
        families[spec].add_metric([name], value)
    status = job.status.value if job.is_judged else NOT_JUDGED
    for each in STATUSES:
        families[table.JOB_STATUS].add_metric([name, each], float(each == status))
    if not job.is_judged:
        families[table.JOB_STATE].add_metric([name], NOT_JUDGED_STATE)
    elif job.status in STATES:
        families[table.JOB_STATE].add_metric([name], STATES.index(job.status))
    if job.labels is not None:
        values = [label(getattr(job.labels, key)) for key in LABELS]
        families[table.JOB_INFO].add_metric([name, *values], 1)


def _by_percentile(quantiles: Mapping[float, float]) -> dict[str, float]:
    # No label is called `quantile`: that is the label of summaries.
    return {f"{100 * share:g}": value for share, value in quantiles.items()}


def _add_groups(families: Mapping[MetricSpec, Family], job: JobMeasure, name: str) -> None:
    counts = job.counts
    groups: dict[MetricSpec, Mapping[str, float]] = {
        table.JOB_STEP_SECONDS: _by_percentile(job.step_quantiles),
        table.JOB_LAG_RANKS: counts.lags if counts else {},
        table.JOB_PHASE_RANKS: counts.phases if counts else {},
        table.JOB_RANKS: job.places,
        table.JOB_EVIDENCE: job.evidence,
        table.JOB_WAIT_RATIO: _by_percentile(job.waits.quantiles),
        table.RANK_WAIT_RATIO: {str(rank): s for rank, s in job.waits.by_rank.items()},
    }
    for spec, group in groups.items():
        for text, value in group.items():
            families[spec].add_metric([name, label(text)], value)


CLOSED_SHOWN_S = 600.0
"""Seconds after its last scrape as open during which a closed incident is exported as 0. The
documented rules use values of the last 300 s, so that every rule sees the 0."""

MAX_SUSPECTS = 16
"""Suspects of an incident that have series."""

MAX_CLOSED_SHOWN = 1000
"""Closed incidents that are exported: the same number as for open ones."""


class IncidentMetrics:
    """The series of incidents.

    It stores which incidents were exported as open, and exports 0 after they close. A missing
    series alone could also mean that the tower restarts.
    """

    def __init__(self, public_url: str) -> None:
        self._links = AlertLinks(public_url=public_url)
        self._scraped: dict[str, tuple[list[str], float]] = {}
        """By incident: its labels and the time of its last scrape as open, oldest first."""

    def collect(
        self, shown: Sequence[JobMeasure], open_ids: Collection[str], now: float
    ) -> Iterator[Metric]:
        """Yield the metric families of the open incidents of `shown` and of recently closed ones.

        `open_ids` are all open incidents, also those that are not in `shown`.
        """
        opened, opened_at = family_of(table.INCIDENT_OPEN), family_of(table.INCIDENT_OPENED)
        acked, info = family_of(table.INCIDENT_ACKED), family_of(table.INCIDENT_INFO)
        suspects, ended = family_of(table.INCIDENT_SUSPECT), family_of(table.INCIDENT_ENDED)
        silenced, shadow = family_of(table.INCIDENT_SILENCED), family_of(table.SHADOW_INCIDENT_OPEN)
        self._forget_old(open_ids, now)
        for job in filter(_has_series, shown):
            incident = job.incident
            assert incident is not None
            labels = list(identify(incident))
            identity = labels[:2]
            info.add_metric([*identity, *self._named(job)], 1)
            silenced.add_metric(identity, float(job.is_incident_silenced))
            if job.has_died:
                ended.add_metric(labels, 1)
                continue
            (shadow if incident.shadow else opened).add_metric(labels, 1)
            self._scraped.pop(incident.id, None)
            if not incident.shadow:
                self._scraped[incident.id] = (labels, now)
            opened_at.add_metric(identity, incident.opened_at)
            acked.add_metric(identity, float(incident.ack is not None))
            for suspect in incident.verdict.suspects[:MAX_SUSPECTS]:
                gpu = "" if suspect.gpu is None else str(suspect.gpu)
                suspects.add_metric([incident.id, str(suspect.rank), label(suspect.node), gpu], 1)
        for ident, (labels, _) in self._scraped.items():
            if ident not in open_ids:
                opened.add_metric(labels, 0)
        yield from (opened, shadow, ended, opened_at, acked, silenced, info, suspects)

    def _forget_old(self, open_ids: Collection[str], now: float) -> None:
        closed = [ident for ident in self._scraped if ident not in open_ids]
        many = len(closed) - MAX_CLOSED_SHOWN
        for number, ident in enumerate(closed):
            if number < many or now - self._scraped[ident][1] >= CLOSED_SHOWN_S:
                del self._scraped[ident]

    def _named(self, job: JobMeasure) -> tuple[str, ...]:
        """Return `cause`, `rank` and `node` of the first suspect, `suspects` and `url`."""
        assert job.incident is not None
        ident, verdict = job.incident.id, job.incident.verdict
        cause = verdict.cause.value if verdict.cause else ""
        suspects = verdict.suspects
        rank, node = (str(suspects[0].rank), label(suspects[0].node)) if suspects else ("", "")
        return cause, rank, node, str(len(suspects)), self._links.details(ident)


def _has_series(job: JobMeasure) -> bool:
    """Return whether a job has an open incident, or an end that has an alert."""
    return job.incident is not None and (has_alert(job.incident) or not job.has_died)


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
