"""The tower's clocks: the monotonic clock for decisions, the wall clock only for display."""

from __future__ import annotations

import math
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
    """Finds the difference of the two clocks, always the same until the wall clock is set.

    The clocks are read one after the other, so that their difference varies by microseconds.
    """

    def __init__(self) -> None:
        self._offset_s = math.inf

    def offset_s(self, now: float, wall: float) -> float:
        """Return UNIX seconds minus seconds of the monotonic clock."""
        if abs(wall - now - self._offset_s) >= STEADY_S:
            self._offset_s = wall - now
        return self._offset_s


def make_id(wall: float) -> str:
    """Return a new ULID: 26 characters that sort by time and cannot be guessed."""
    number = (int(wall * 1000) & (2**48 - 1)) << 80 | int.from_bytes(os.urandom(10), "big")
    return "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))
