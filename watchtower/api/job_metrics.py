"""Metrics of jobs, made of values that were read before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import Metric

from watchtower.api import metric_table as table
from watchtower.api.families import Family, family_of
from watchtower.service.metric_spec import MetricSpec
from watchtower.tower.job_measures import JobMeasure
from watchtower.wire.report import LABELS
from watchtower.wire.verdict import NOT_JUDGED, Status
from watchtower.writing.printable import label

STATUSES = (*(status.value for status in Status), NOT_JUDGED)
"""The values of the label `status`."""

STATES = (
    Status.HEALTHY,
    Status.RECOVERED,
    Status.SUSPENDED,
    Status.SLOW,
    Status.SUSPECT,
    Status.MONITORING_LOST,
    Status.HUNG,
)
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
