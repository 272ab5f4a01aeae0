"""Limits how often a job may begin a new attempt.

Each attempt costs a row in the store, a line in the log and a `JobWatch`. Some jobs restart many
times a minute, by mistake or on purpose. Their processes between two permitted attempts are not
recorded. A process that lives long enough is recorded when the next attempt may begin. Until then
the job is not judged, because only the ended ranks of the attempt before are known.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from watchtower.service.sharing import TokenBucket

BURST = 6
"""Number of attempts that may begin without a wait. Real jobs need many seconds to start."""

REFILL_S = 10.0
"""Seconds between attempts after the burst: six attempts a minute."""


@dataclass(slots=True)
class AttemptLimit:
    """Limits the attempts of one job."""

    _bucket: TokenBucket = field(default_factory=lambda: TokenBucket(BURST, 1 / REFILL_S))
    _refused_at: float = float("-inf")

    def may_begin(self, now: float) -> bool:
        """Return whether an attempt may begin now; if so, it is counted."""
        if self._bucket.take(now):
            return True
        self._refused_at = now
        return False

    def explain_refusal(self, now: float, within_s: float) -> str:
        """Return a clause if an attempt was refused in the last `within_s` seconds, else empty."""
        if now - self._refused_at > within_s:
            return ""
        return f"it restarts too often: its next attempt is watched after at most {REFILL_S:g} s"
