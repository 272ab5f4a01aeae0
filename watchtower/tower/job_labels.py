"""Labels of live jobs, from the environment of their ranks. They are only displayed."""

from __future__ import annotations

from watchtower.tower.tower import Tower
from watchtower.wire.report import Report


def note_labels(tower: Tower, report: Report) -> None:
    """Store the labels of the jobs in a report. The first labels of a live job do not change."""
    fleet = tower.fleet
    for each in report.jobs:
        job = fleet.jobs.get(fleet.labels.find(each.job, each.owner))
        if job is not None and job.labels is None:
            job.labels = each
