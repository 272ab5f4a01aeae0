"""How often a job may begin a new attempt.

An attempt has a row in the store, a line in the log and a watch of its own. A job whose processes
come back as others many times a minute, by mistake or on purpose, gets a few of them. The processes
in between are not taken in. A process that lives long enough is taken in when the next attempt may
begin. Until then the job is not judged: all that is known of it are the ends of an attempt that has
a successor.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from watchtower.token_bucket import TokenBucket

BURST = 6
"""Attempts that may begin at once. Real jobs need many seconds to start."""

REFILL_S = 10.0
"""After the burst one attempt in this time: six a minute."""


@dataclass(slots=True)
class AttemptLimit:
    """The attempts that one job may still begin."""

    _bucket: TokenBucket = field(default_factory=lambda: TokenBucket(BURST, 1 / REFILL_S))
    _refused_at: float = float("-inf")

    def may_begin(self, now: float) -> bool:
        """Whether an attempt may begin now; if so, it counts."""
        if self._bucket.take(now):
            return True
        self._refused_at = now
        return False

    def say_refused(self, now: float, within_s: float) -> str:
        """Say that processes of a next attempt were not taken in, if that was within `within_s`."""
        if now - self._refused_at > within_s:
            return ""
        return f"it restarts too often: its next attempt is watched within {REFILL_S:g} s"
