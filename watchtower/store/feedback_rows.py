"""Rows of the table of feedback: the newest answer of people about each incident."""

from __future__ import annotations

import sqlite3

from watchtower.store.values import Feedback
from watchtower.wire.verdict import Cause

MAX_RECALLED = 10_000
"""Answers that a starting tower reads, the newest ones: one for each stored incident by default."""

_COLUMNS = (
    "incident, job, answered_at, is_right, true_rank, true_cause, answered_by, note,"
    " verdict_cause, verdict_confidence"
)

_NEWEST = f"SELECT {_COLUMNS} FROM feedback ORDER BY answered_at DESC LIMIT ?"

_SAVE = f"""
INSERT INTO feedback ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (incident) DO UPDATE SET job = excluded.job, answered_at = excluded.answered_at,
    is_right = excluded.is_right, true_rank = excluded.true_rank,
    true_cause = excluded.true_cause, answered_by = excluded.answered_by, note = excluded.note,
    verdict_cause = excluded.verdict_cause, verdict_confidence = excluded.verdict_confidence
"""


def save_feedback(db: sqlite3.Connection, given: Feedback) -> None:
    """Insert an answer, in place of an earlier one about the same incident."""
    row = (
        given.incident,
        given.job,
        given.at,
        int(given.right),
        given.rank,
        given.cause.value if given.cause else "",
        given.by,
        given.note,
        given.verdict_cause.value,
        given.confidence,
    )
    db.execute(_SAVE, row)


def read_feedback(db: sqlite3.Connection) -> tuple[Feedback, ...]:
    """Return the newest answers, oldest first."""
    return tuple(reversed([_read(row) for row in db.execute(_NEWEST, (MAX_RECALLED,))]))


def _read(row: tuple[str, str, float, int, int | None, str, str, str, str, float]) -> Feedback:
    incident, job, at, is_right, rank, cause, by, note, verdict_cause, confidence = row
    return Feedback(
        incident=incident,
        job=job,
        at=at,
        right=bool(is_right),
        rank=rank,
        cause=_cause(cause),
        by=by,
        note=note,
        verdict_cause=_cause(verdict_cause) or Cause.UNKNOWN,
        confidence=confidence,
    )


def _cause(text: str) -> Cause | None:
    """Return a cause; None for none, and for one that only another release knows."""
    return next((cause for cause in Cause if cause.value == text), None)
