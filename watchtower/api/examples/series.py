"""Examples of the answers about what happened over time. They are of the same job as `examples`."""

from __future__ import annotations

from watchtower.api.examples.objects import INCIDENT, JOB, NODE, OPENED_AT, OUTPUT, plain
from watchtower.views.incident import IncidentSeries, LaneView, SeriesView
from watchtower.views.job import JobSteps, StepSpan

INCIDENT_SERIES = plain(
    IncidentSeries(
        incident=INCIDENT,
        items=[
            SeriesView(
                rank=37,
                node=NODE,
                is_suspect=True,
                gpu=None,
                gpu_address="",
                ends_at=OPENED_AT,
                interval_s=1.0,
                lanes=[LaneView(name="step", unit="", values=[1232.0, 1233.0, 1233.0, None])],
            ),
            SeriesView(
                rank=37,
                node=NODE,
                is_suspect=True,
                gpu=5,
                gpu_address="0000:9b:00",
                ends_at=OPENED_AT,
                interval_s=1.0,
                lanes=[LaneView(name="power", unit="W", values=[690.0, 684.0, 91.0, 88.0])],
            ),
        ],
        outputs=[
            OUTPUT,
        ],
    )
)
JOB_STEPS = plain(
    JobSteps(
        job=JOB,
        generation=2,
        recent=StepSpan(
            interval_s=5.0,
            ends_at=OPENED_AT,
            steps=[1221, 1227, 1233, 1233],
            statuses=["healthy", "healthy", "healthy", "suspect"],
            phases=["", "checkpoint", "", ""],
        ),
        day=StepSpan(
            interval_s=300.0,
            ends_at="2026-11-22T02:15:00.000Z",
            steps=[None, 371, 745, 1120],
            statuses=["healthy"] * 4,
            phases=[""] * 4,
        ),
    )
)
