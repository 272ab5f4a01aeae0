"""Labels of live jobs: what their environment says of them, for people."""

from __future__ import annotations

from watchtower.tower.tower import Tower
from watchtower.wire.report import Report


def note_labels(tower: Tower, report: Report) -> None:
    """Keep the labels of the jobs of a report. The first ones of a live job stay."""
    fleet = tower.fleet
    for each in report.jobs:
        job = fleet.jobs.get(fleet.labels.find(each.job, each.owner))
        if job is not None and job.labels is None:
            job.labels = each
