"""Deadlines: what the reply to a report tells an agent, so that it dumps without being asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from watchtower.core.detection.detector import Detector
from watchtower.core.fleet.fleet import Fleet
from watchtower.core.fleet.pace import Pauses
from watchtower.wire.orders import Deadline
from watchtower.wire.report import Report


def find_deadlines(
    report: Report, fleet: Fleet, detector: Detector, pauses: Mapping[str, Pauses]
) -> Iterator[Deadline]:
    """Say of each rank of a report how long it may go without a beat, where that is known."""
    known: dict[tuple[str, str], float | None] = {}
    for vitals in report.ranks:
        label = fleet.labels.find(vitals.job, vitals.owner)
        job, beat = fleet.jobs.get(label), vitals.beat
        if job is None or beat is None or beat.step < 0 or vitals.ended is not None:
            continue
        key = (label, beat.phase)
        if key not in known:
            learned = pauses.get(label, Pauses())
            known[key] = detector.deadline_s(job.generation, beat.phase, learned)
        after_s = known[key]
        if after_s is not None:
            yield Deadline(
                job=vitals.job,
                owner=vitals.owner,
                rank=vitals.rank,
                after_s=after_s,
                phase=beat.phase,
            )
