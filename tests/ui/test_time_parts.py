"""Traces of an incident and steps of a job: what a person reads, and that text stays text."""

from __future__ import annotations

import pytest

from tests.ui.browsing import Page
from watchtower.ui.steps_part import show_steps
from watchtower.ui.templates import make_environment
from watchtower.ui.traces_part import show_traces
from watchtower.views.incident import (
    IncidentSeries,
    IncidentSummary,
    LaneView,
    OutputView,
    SeriesView,
)
from watchtower.views.job import JobSteps, StepSpan
from watchtower.wire.verdict import Cause, Status
from watchtower.writing.times import rfc3339

END = 1.7e9
STALLED_AT = END - 60


def lanes(step: list, power: list, state: str = "S") -> tuple[list[LaneView], list[LaneView]]:
    own = [
        LaneView(name="step", unit="", values=step),
        LaneView(name="state", unit="state", values=[83.0] * (len(step) - 10) + [ord(state)] * 10),
    ]
    return own, [LaneView(name="power", unit="W", values=power)]


def a_rank(rank: int, *, suspect: bool = False, ends_at: float = END, after: float = 121.0):
    before, stall = 840, 60
    step = [float(n) for n in range(before)] + [float(before - 1)] * stall
    power = [690.0] * before + [after] * stall
    own, gpu = lanes(step, power, "T" if suspect else "S")
    more = {"node": f"gpu-{rank:03}", "is_suspect": suspect, "interval_s": 1.0, "rank": rank}
    at = rfc3339(ends_at)
    return [
        SeriesView(gpu=None, gpu_address="", ends_at=at, lanes=own, **more),
        SeriesView(gpu=5, gpu_address="0000:9b:00", ends_at=at, lanes=gpu, **more),
    ]


def an_answer(*ranks: list[SeriesView], lines: tuple[str, ...] = ()) -> IncidentSeries:
    output = OutputView(
        rank=37, node="gpu-037", stream="stderr", lines=list(lines), written_at=rfc3339(END)
    )
    items = [one for rank in ranks for one in rank]
    return IncidentSeries(incident="i1", items=items, outputs=[output] if lines else [])


def render(name: str, values: object) -> Page:
    template = make_environment().get_template(f"parts/{name}.html")
    return Page(template.render(part=values, root="./"))


SUSPECT, PEERS = a_rank(37, suspect=True, after=88.0), [a_rank(0), a_rank(8), a_rank(16)]


def test_a_suspect_is_compared_with_the_median_of_its_peers():
    shown = show_traces(an_answer(SUSPECT, *PEERS), STALLED_AT)
    assert shown.suspect == "rank 37 on gpu-037, GPU 5"
    assert shown.peers == "ranks 0,8,16"
    assert shown.sentences == ["Rank 37: power 690 -> 88 W, sleeping -> stopped"]
    step, power = shown.charts
    assert (step.title, step.suspect, step.peers) == ("Step", "839", "839")
    assert (power.title, power.suspect, power.peers) == ("GPU power", "690 -> 88 W", "121 W")
    assert [line.kind for line in power.lines] == ["peers", "suspect"]
    (band,) = power.bands
    assert 0.92 < band.x / 300 < 0.94
    assert shown.minutes == 15


def test_one_odd_peer_does_not_change_the_median():
    shown = show_traces(an_answer(SUSPECT, a_rank(0, after=9.0), *PEERS[1:]), STALLED_AT)
    assert shown.charts[1].peers == "121 W"


def test_series_that_ended_earlier_are_shifted():
    early = a_rank(0, ends_at=END - 30)
    shown = show_traces(an_answer(SUSPECT, early), STALLED_AT)
    peers = shown.charts[1].lines[0]
    last = peers.pieces[-1].split()[-1]
    assert float(last.partition(",")[0]) < 0.98 * 300


def test_without_a_suspect_the_peers_are_shown():
    shown = show_traces(an_answer(*PEERS), STALLED_AT)
    assert (shown.suspect, shown.sentences) == ("", [])
    assert all(chart.suspect == "" for chart in shown.charts)
    assert "median of healthy ranks 0,8,16" in render("traces", shown).text


def test_without_peers_and_without_a_stall_the_suspect_is_shown():
    shown = show_traces(an_answer(SUSPECT), None)
    assert shown.charts[1].suspect == "88 W"
    assert shown.charts[1].bands == []
    render("traces", shown)


def test_what_never_changes_has_no_chart():
    flat = [
        SeriesView(
            rank=37,
            node="n",
            is_suspect=True,
            gpu=None,
            gpu_address="",
            ends_at=rfc3339(END),
            interval_s=1.0,
            lanes=[LaneView(name="cpu", unit="cores", values=[0.01, 0.02] * 50)],
        )
    ]
    assert show_traces(an_answer(flat), STALLED_AT).charts == []


def test_an_incident_without_series_has_no_part():
    assert show_traces(an_answer(), STALLED_AT) is None


def test_output_and_names_stay_text():
    evil = '<script>alert(1)</script>" onload="x'
    rank = a_rank(37, suspect=True)
    for one in rank:
        object.__setattr__(one, "node", evil)
    page = render("traces", show_traces(an_answer(rank, lines=(evil,)), STALLED_AT))
    assert not {"script", "style"} & {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") or name == "style" for _, a in page.tags for name in a)
    assert evil in page.text


def test_a_page_of_traces_is_small():
    values = show_traces(an_answer(SUSPECT, *PEERS), STALLED_AT)
    html = make_environment().get_template("parts/traces.html").render(part=values, root="./")
    assert len(html) < 12_000


# ---- Steps ----


def a_span(steps: list, interval_s: float = 5.0, **more) -> StepSpan:
    more = {"statuses": ["healthy"] * len(steps), "phases": [""] * len(steps), **more}
    ends_at = rfc3339(END) if steps else None
    return StepSpan(interval_s=interval_s, ends_at=ends_at, steps=steps, **more)


def steps_of(recent: StepSpan, day: StepSpan | None = None) -> JobSteps:
    return JobSteps(job="llama", generation=1, recent=recent, day=day or a_span([], 300.0))


def an_incident(age_s: float) -> IncidentSummary:
    values = dict.fromkeys(IncidentSummary.__dataclass_fields__)
    values |= {
        "id": f"i{age_s:.0f}",
        "opened_at": rfc3339(END - age_s),
        "cause": Cause.DATALOADER_STALL,
        "status": Status.HUNG,
    }
    return IncidentSummary(**values)


def test_steps_phases_and_incidents_of_a_job():
    count = 181
    recent = a_span(
        [n for n in range(count)],
        phases=["save" if 60 <= n < 72 else "" for n in range(count)],
        statuses=["hung" if n >= 150 else "healthy" for n in range(count)],
    )
    incidents = [an_incident(100), an_incident(5000)]
    shown = show_steps(steps_of(recent), incidents)
    (chart,) = shown.charts
    assert chart.phases == ["save"]
    assert [(band.kind, band.label) for band in chart.bands] == [
        ("phase", "save"),
        ("trouble", "hung"),
    ]
    assert [mark.incident for mark in chart.marks] == ["i100"]
    assert chart.sentence.endswith("12 a minute")
    page = render("steps", shown)
    assert ("a", {"href": "./incidents/i100"}) in page.tags
    assert "waiting for input data" in page.text


def test_a_job_that_makes_no_steps_says_so():
    (chart,) = show_steps(steps_of(a_span([None, None, *[7] * 60])), []).charts
    assert chart.sentence.startswith("no step in ")
    assert chart.sentence.endswith(", at step 7")
    (chart,) = show_steps(steps_of(a_span([*range(50), *range(10)])), []).charts
    assert "a later attempt" in chart.sentence


def test_the_chart_changes_with_every_third_point_only():
    spans = []
    for newest in range(3):
        ends_at = rfc3339(END // 15 * 15 + 5 * newest)
        span = a_span(list(range(newest, 100 + newest)))
        spans.append(StepSpan(**{**span_values(span), "ends_at": ends_at}))
    shown = [show_steps(steps_of(span), []).charts[0].line.pieces[0].split()[-1] for span in spans]
    marks = [show_steps(steps_of(span), [an_incident(100)]).charts[0].sentence for span in spans]
    assert len({text.partition("-> ")[2] for text in marks}) == 1
    assert len(set(shown)) == 1


def test_the_chart_of_a_job_that_hangs_does_not_change():
    """For three minutes: then its beginning moves."""
    lines = set()
    for stalled in range(40, 61):
        steps = [*range(180 - stalled), *[180 - stalled - 1] * stalled]
        steps = [step - (60 - stalled) for step in steps]
        statuses = [*["healthy"] * (180 - stalled), *["hung"] * stalled]
        ends_at = rfc3339(END // 180 * 180 + 5 * (stalled - 40))
        span = a_span(steps, statuses=statuses)
        span = StepSpan(**{**span_values(span), "ends_at": ends_at})
        (chart,) = show_steps(steps_of(span), []).charts
        lines.add(len(chart.line.pieces[0].split()))
        assert [band.label for band in chart.bands] == ["hung"]
    assert len(lines) <= 2


def span_values(span: StepSpan) -> dict:
    return {name: getattr(span, name) for name in StepSpan.__dataclass_fields__}


@pytest.mark.parametrize("steps", [[], [1, 2], [None] * 100])
def test_without_points_there_is_no_part(steps):
    assert show_steps(steps_of(a_span(steps)), []) is None
