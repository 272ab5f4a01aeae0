"""The tower's clocks: the monotonic clock for decisions, the wall clock only for display."""

from __future__ import annotations

import os
import time

STEADY_S = 1.0
"""A smaller change of the wall clock against the monotonic clock does not matter to people."""

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class Clock:
    """Reads both clocks."""

    def now(self) -> float:
        """Return seconds of the monotonic clock."""
        return time.monotonic()

    def wall(self) -> float:
        """Return UNIX seconds."""
        return time.time()

    def new_id(self, of: str) -> str:
        """Return a new ULID. `of` is what it names, such as "incident of JOB", for recordings."""
        return make_id(self.wall())


class SteadyWall:
    """Converts times of the monotonic clock to UNIX seconds, always with the same result.

    The two clocks are read one after the other, so that their difference varies by microseconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_s = clock.wall() - clock.now()

    def of(self, at: float) -> float:
        """Return the UNIX seconds of a time of the monotonic clock."""
        offset_s = self._clock.wall() - self._clock.now()
        if abs(offset_s - self._offset_s) >= STEADY_S:  # the wall clock was set
            self._offset_s = offset_s
        return at + self._offset_s


def make_id(wall: float) -> str:
    """Return a new ULID: 26 characters that sort by time and cannot be guessed."""
    number = (int(wall * 1000) & (2**48 - 1)) << 80 | int.from_bytes(os.urandom(10), "big")
    return "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))
