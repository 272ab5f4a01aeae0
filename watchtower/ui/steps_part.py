"""The part of a job's page about its steps: a chart of 15 minutes and one of a day. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from watchtower.jobs.measures import FINE_POINTS
from watchtower.ui.charts import WIDTH, Band, Line, Scale, draw_line, find_bands, make_scale
from watchtower.views.incident import IncidentSummary
from watchtower.views.job import JobSteps, StepSpan
from watchtower.wire.verdict import Cause, Status
from watchtower.writing.cause_names import format_cause
from watchtower.writing.text import format_duration
from watchtower.writing.times import read_time

LEAST_POINTS = 6
"""A chart of fewer points shows nothing."""

FINE_POINTS_A_CHANGE = 3
"""The chart of 15 minutes changes with every third point: each change is sent to all open pages."""

STALL_POINTS = 3
"""Points of a stall that the chart of 15 minutes shows. It ends there: it does not change while the
job hangs."""

START_POINTS = 36
"""While the job hangs, the beginning of the chart moves by so many points at once: 3 minutes."""

STALLED = frozenset({Status.SUSPECT.value, Status.HUNG.value})

CALM = frozenset(
    each.value
    for each in (Status.HEALTHY, Status.RECOVERED, Status.ENDED, Status.SLOW, Status.SUSPENDED)
)
"""Statuses that are not shaded: the line shows them well enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An incident at its place in a chart."""

    x: float
    label: str
    incident: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChart:
    """The steps of one span of time."""

    title: str
    sentence: str
    scale: Scale
    line: Line
    bands: list[Band]
    phases: list[str]
    """Names of the shaded phases."""
    marks: list[Mark]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsShown:
    """The values of the part."""

    charts: list[StepChart]
    marks: list[Mark]
    """Incidents in any of the charts, newest first."""


def show_steps(found: JobSteps, incidents: Sequence[IncidentSummary]) -> StepsShown | None:
    """Return what the part shows; None before there are points."""
    recent = _hold(_cut(found.recent, FINE_POINTS_A_CHANGE))
    spans = [("Steps of the last 15 minutes", recent), ("Steps of the last day", found.day)]
    charts = [
        _draw(title, span, span.ends_at, incidents)
        for title, span in spans
        if span.ends_at is not None and _has_enough(span)
    ]
    every = {mark.incident: mark for chart in charts for mark in chart.marks}
    return StepsShown(charts=charts, marks=list(every.values())) if charts else None


def _has_enough(span: StepSpan) -> bool:
    return len(span.steps) >= LEAST_POINTS and any(step is not None for step in span.steps)


def _cut(span: StepSpan, multiple: int) -> StepSpan:
    """Return a span without its newest points, so that it changes once in `multiple` points."""
    if span.ends_at is None:
        return span
    return _slice(span, 0, _place_of_end(span) % multiple)


def _hold(span: StepSpan) -> StepSpan:
    """Return a span that ends soon after the beginning of a stall that lasts."""
    if not span.steps or span.statuses[-1] not in STALLED:
        return span
    points = list(zip(span.steps, span.statuses, strict=True))
    run = next(
        (count for count, point in enumerate(reversed(points)) if point != points[-1]), len(points)
    )
    extra = run - STALL_POINTS
    if extra <= 0 or run == len(points):
        return span
    first = _place_of_end(span) - len(points) + 1
    is_full = len(points) + FINE_POINTS_A_CHANGE > FINE_POINTS
    return _slice(span, -first % START_POINTS if is_full else 0, extra)


def _place_of_end(span: StepSpan) -> int:
    """Return the number of the last point, counted from a fixed time."""
    assert span.ends_at is not None
    return int(read_time(span.ends_at).timestamp() / span.interval_s)


def _slice(span: StepSpan, first: int, extra: int) -> StepSpan:
    """Return a span without its first points and without `extra` points at its end."""
    if span.ends_at is None or first + extra >= len(span.steps):
        return span
    ends_at = read_time(span.ends_at)
    moved = datetime.fromtimestamp(ends_at.timestamp() - extra * span.interval_s, ends_at.tzinfo)
    last = len(span.steps) - extra
    return StepSpan(
        interval_s=span.interval_s,
        ends_at=moved.isoformat(timespec="seconds").replace("+00:00", "Z"),
        steps=span.steps[first:last],
        statuses=span.statuses[first:last],
        phases=span.phases[first:last],
    )


def _draw(
    title: str, span: StepSpan, ends_at: str, incidents: Sequence[IncidentSummary]
) -> StepChart:
    known = [step for step in span.steps if step is not None]
    phases = find_bands("phase", span.phases, frozenset({""}))
    trouble = find_bands("trouble", span.statuses, CALM)
    length_s = span.interval_s * (len(span.steps) - 1)
    return StepChart(
        title=title,
        sentence=_write_sentence(known, length_s),
        scale=make_scale(str(min(known)), str(max(known)), ends_at, length_s),
        line=draw_line("steps", span.steps, min(known), max(known)),
        bands=[*phases, *trouble],
        phases=list(dict.fromkeys(band.label for band in phases)),
        marks=list(_find_marks(incidents, ends_at, length_s)),
    )


def _write_sentence(known: Sequence[int], length_s: float) -> str:
    if any(after < before for before, after in pairwise(known)):
        return f"now at step {known[-1]}, in a later attempt"
    made = known[-1] - known[0]
    if not made:
        return f"no step in {format_duration(length_s)}, at step {known[-1]}"
    return f"step {known[0]} -> {known[-1]}, {made / length_s * 60:.3g} a minute"


def _find_marks(incidents: Sequence[IncidentSummary], ends_at: str, length_s: float) -> list[Mark]:
    end = read_time(ends_at).timestamp()
    marks = []
    for incident in incidents:
        age_s = end - read_time(incident.opened_at).timestamp()
        if 0 <= age_s <= length_s:
            cause = format_cause(incident.cause or Cause.UNKNOWN)
            label = f"{incident.opened_at[11:19]} {cause}"
            x = round(WIDTH * (1 - age_s / length_s), 1)
            marks.append(Mark(x=x, label=label, incident=incident.id))
    return marks
