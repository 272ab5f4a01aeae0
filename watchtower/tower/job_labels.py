"""Labels of live jobs, from the environment of their ranks. They are only displayed."""

from __future__ import annotations

from watchtower.fleet.fleet import Fleet
from watchtower.wire.report import Report


def note_labels(fleet: Fleet, report: Report) -> None:
    """Store the labels of the jobs in a report. The first labels of a live job do not change.

    Only an agent that reports a rank of a job may label it. Alerts go to the user in the labels.
    """
    reported = None
    for each in report.jobs:
        label = fleet.placing.find_label(report.node, each.job, each.owner, each.launch)
        job = fleet.jobs.get(label)
        if job is None or job.labels is not None:
            continue
        reported = find_reported_jobs(fleet, report) if reported is None else reported
        if label in reported:
            job.labels = each


def find_reported_jobs(fleet: Fleet, report: Report) -> frozenset[str]:
    """Return the labels of the jobs of which the agent of a report holds a rank."""
    found = set()
    for label, rank in fleet.nodes[report.node].ranks:
        job = fleet.jobs.get(label)
        record = job.generation.ranks.get(rank) if job else None
        if record is not None and record.reporter.agent_id == report.agent_id:
            found.add(label)
    return frozenset(found)
