"""What the reports of a rank show about its marked phases."""

from __future__ import annotations

from watchtower.fleet.generation import RankRecord
from watchtower.wire.report import EXIT_PHASE, RankVitals


def phase_changed_at(record: RankRecord, vitals: RankVitals, now: float) -> float:
    """Return when a rank last entered or left a phase, by its record and its new report."""
    before, beat, changed_at = record.vitals.beat, vitals.beat, record.phase_changed_at
    if beat is None:
        return changed_at
    if beat.phase:
        changed_at = max(changed_at, now - beat.phase_age_s)
    has_changed = before is not None and before.phase != beat.phase
    # A report says when the present phase began, not when the one before it ended.
    return now if has_changed and changed_at <= record.seen_at else changed_at


def outside_s(record: RankRecord, vitals: RankVitals, now: float) -> float:
    """Return the seconds of a rank outside phases since its heartbeat, with those of its report."""
    before, beat, passed_s = record.vitals.beat, vitals.beat, now - record.seen_at
    if before is None or beat is None or beat.age_s < passed_s:
        return 0.0  # it had no heartbeat before, or has one that is newer than the previous report
    return record.outside_s + (0.0 if before.phase or beat.phase else passed_s)


def is_exiting(record: RankRecord) -> bool:
    """Return whether a rank's program has finished, and its process is shutting down."""
    beat = record.vitals.beat
    return beat is not None and beat.phase == EXIT_PHASE
