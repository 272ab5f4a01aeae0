"""Deadlines in the reply to a report, so that an agent dumps without an order.

An accepted report always gets a reply. If the deadline of a job cannot be computed, it is left out,
and the other jobs of the node get their deadlines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from watchtower.core.detection.detector import Detector
from watchtower.core.detection.dump_timing import jitter_s
from watchtower.core.fleet.fleet import Fleet
from watchtower.core.fleet.generation import Generation
from watchtower.core.fleet.pace import Pauses
from watchtower.tower.troubles import Troubles
from watchtower.wire.bounds import MAX_AGE_S
from watchtower.wire.orders import Deadline
from watchtower.wire.report import RankVitals, Report

DEADLINES = "making its deadlines"


def find_deadlines(
    report: Report,
    fleet: Fleet,
    detector: Detector,
    pauses: Mapping[str, Pauses],
    troubles: Troubles,
) -> Iterator[Deadline]:
    """Yield for each rank of a report how long it may be without a heartbeat, if that is known."""
    known: dict[tuple[str, str], float | None] = {}
    jitters: dict[str, float] = {}
    for vitals in report.ranks:
        label = fleet.placing.find_label(report.node, vitals.job, vitals.owner, vitals.launch)
        job, beat = fleet.jobs.get(label), vitals.beat
        if job is None or beat is None or beat.step < 0 or vitals.ended is not None:
            continue
        record = job.generation.ranks.get(vitals.rank)
        if record is None or record.key[1:] != (vitals.pid, vitals.start_time):
            continue  # it is not watched as a rank of this job
        key = (label, beat.phase)
        try:
            if key not in known:
                known[key] = None
                learned = pauses.get(label, Pauses())
                known[key] = detector.deadline_s(job.generation, beat.phase, learned)
                jitters[label] = jitter_s(len(job.generation.ranks))
                troubles.end(label, DEADLINES)
            after_s = known[key]
            if after_s is None:
                continue
            deadline = Deadline(
                job=vitals.job,
                owner=vitals.owner,
                launch=vitals.launch,
                rank=vitals.rank,
                after_s=min(_after_phase_s(job.generation, vitals) + after_s, MAX_AGE_S),
                phase=beat.phase,
                jitter_s=jitters[label],
            )
        except Exception as error:
            troubles.note(label, DEADLINES, error)
            continue
        yield deadline


def _after_phase_s(gen: Generation, vitals: RankVitals) -> float:
    """Return the seconds from the last heartbeat of a rank until it last entered or left a phase.

    An agent counts from the heartbeat, and a limit counts from the latest of these.
    """
    record, beat = gen.ranks.get(vitals.rank), vitals.beat
    if beat is None or record is None or record.vitals.beat != beat:
        return 0.0
    return max(0.0, record.phase_changed_at - (record.seen_at - beat.age_s))
