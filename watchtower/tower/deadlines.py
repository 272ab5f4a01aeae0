"""Deadlines in the reply to a report, so that an agent dumps without an order.

An accepted report always gets a reply. If the deadline of a job cannot be computed, it is left out,
and the other jobs of the node get their deadlines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from watchtower.core.detection.detector import Detector
from watchtower.core.detection.dump_timing import jitter_s
from watchtower.core.fleet.fleet import Fleet
from watchtower.core.fleet.generation import Generation, RankRecord
from watchtower.core.fleet.pace import Pauses
from watchtower.tower.troubles import Troubles
from watchtower.wire.bounds import MAX_AGE_S
from watchtower.wire.orders import Deadline
from watchtower.wire.report import Beat, Report

DEADLINES = "making its deadlines"


@dataclass(frozen=True, slots=True)
class _Limit:
    """How long ranks of one job in one phase may be without a heartbeat."""

    generation: Generation
    after_s: float
    jitter_s: float


def find_deadlines(
    report: Report,
    fleet: Fleet,
    detector: Detector,
    pauses: Mapping[str, Pauses],
    troubles: Troubles,
    last: Sequence[Deadline] = (),
) -> tuple[Deadline, ...]:
    """Return how long each rank of a report may be without a heartbeat, if that is known.

    `last`: the deadlines in the reply before this one. Those that have not changed are used again,
    because it takes longer to make and to encode a deadline than to compare one.
    """
    limits: dict[tuple[str, str, str, str], _Limit | None] = {}
    found: list[Deadline] = []
    for vitals in report.ranks:
        beat = vitals.beat
        if beat is None or beat.step < 0 or vitals.ended is not None:
            continue
        key = vitals.job, vitals.owner, vitals.launch, beat.phase
        if key not in limits:
            label = fleet.placing.find_label(report.node, *key[:3])
            job = fleet.jobs.get(label)
            known = pauses.get(label) or Pauses()
            limits[key] = (
                _find_limit(job.generation, beat.phase, detector, known, troubles) if job else None
            )
        limit = limits[key]
        record = limit.generation.ranks.get(vitals.rank) if limit is not None else None
        if limit is None or record is None or record.key[1:] != (vitals.pid, vitals.start_time):
            continue  # not known yet, or it is not watched as a rank of this job
        after_s = min(limit.after_s + _after_phase_s(record, beat), MAX_AGE_S)
        asked = (*key, vitals.rank, after_s, limit.jitter_s)
        before = last[len(found)] if len(found) < len(last) else None
        is_same = before is not None and _asked(before) == asked
        found.append(before if before is not None and is_same else _make(*asked))
    return tuple(found)


def _find_limit(
    gen: Generation, phase: str, detector: Detector, pauses: Pauses, troubles: Troubles
) -> _Limit | None:
    try:
        after_s = detector.deadline_s(gen, phase, pauses)
    except Exception as error:
        troubles.note(gen.job, DEADLINES, error)
        return None
    troubles.end(gen.job, DEADLINES)
    return None if after_s is None else _Limit(gen, after_s, jitter_s(len(gen.ranks)))


def _asked(deadline: Deadline) -> tuple[str, str, str, str, int, float, float]:
    return (
        deadline.job,
        deadline.owner,
        deadline.launch,
        deadline.phase,
        deadline.rank,
        deadline.after_s,
        deadline.jitter_s,
    )


def _make(
    job: str, owner: str, launch: str, phase: str, rank: int, after_s: float, jitter_s: float
) -> Deadline:
    return Deadline(
        job=job,
        owner=owner,
        launch=launch,
        phase=phase,
        rank=rank,
        after_s=after_s,
        jitter_s=jitter_s,
    )


def _after_phase_s(record: RankRecord, beat: Beat) -> float:
    """Return the seconds from the last heartbeat of a rank until it last entered or left a phase.

    An agent counts from the heartbeat, and a limit counts from the latest of these.
    """
    if record.phase_changed_at == float("-inf") or record.vitals.beat != beat:
        return 0.0
    return max(0.0, record.phase_changed_at - (record.seen_at - beat.age_s))
