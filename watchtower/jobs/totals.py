"""Totals of a job over all its attempts: steps made, seconds watched, seconds lost in hangs."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.wire.verdict import Status

NOT_WATCHED = (Status.ENDED, Status.SUSPENDED, Status.MONITORING_LOST)
"""Statuses in which a job cannot make steps, or is not seen."""


@dataclass(slots=True)
class JobTotals:
    """Totals since the job was first seen by this tower."""

    steps: int = 0
    """Steps that every rank with heartbeats has made. Steps that a later attempt makes again count
    again."""
    watched_s: float = 0.0
    lost_s: float = 0.0
    """Seconds in hangs, from the last step to the next one. At most `watched_s`."""
    _attempt: int = 0
    _step: int = -1
    _at: float | None = None
    _was_hung: bool = False

    @property
    def trained_share(self) -> float | None:
        """Share of the watched time in which the job was not hung; None before it was watched."""
        return 1 - self.lost_s / self.watched_s if self.watched_s > 0 else None

    def advance(
        self, attempt: int, step: int, status: Status, stalled_since: float | None, now: float
    ) -> float:
        """Add the time since the last call. Returns the seconds that are newly lost.

        `step` is the lowest step of all ranks, -1 before the first. `stalled_since` is the start of
        the current stall. It counts when the job becomes hung: a pause that ends before is not
        lost.
        """
        if attempt == self._attempt and self._step >= 0:
            self.steps += max(0, step - self._step)
        self._attempt, self._step = attempt, step
        passed_s = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        if status in NOT_WATCHED:
            self._was_hung = False
            return 0.0
        self.watched_s += passed_s
        if status is not Status.HUNG:
            self._was_hung = False
            return 0.0
        lost_s = passed_s
        if not self._was_hung and stalled_since is not None:
            lost_s = max(passed_s, now - stalled_since)
        self._was_hung = True
        lost_s = min(lost_s, self.watched_s - self.lost_s)
        self.lost_s += lost_s
        return lost_s
