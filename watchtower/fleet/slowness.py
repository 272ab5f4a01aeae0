"""Slowness: since when the steps of a job take longer than usual, and how much longer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

BACK_TO_USUAL = 1.5
"""A step below this many usual steps is not slow. The usual length is updated again then."""

SLOW_FOR_S = 1800.0
SLOW_STEPS = 20
"""After this many seconds and samples the slow length becomes the usual one."""

SLOW_AT_LEAST_S = 300.0
MANY_SAMPLES = 128
"""After this many samples it does so earlier, but not before `SLOW_AT_LEAST_S` seconds: enough for
three counts of waiting ranks (see `wait_counts`), however short the steps are."""

SAMPLE_S = 0.5
"""Seconds that a sample of shorter steps counts: samples come with reports of agents."""


class Latest(NamedTuple):
    """The latest steps."""

    slowdown: float
    present_s: float
    """Seconds per step."""


NOT_SLOWER = Latest(0.0, 0.0)
"""No slowdown is known."""


@dataclass(slots=True)
class Slowness:
    """The slowness of one job by one measure of its steps."""

    usual_s: float = 0.0
    """Usual length of a step in seconds; 0 if it is not known. It does not change while the steps
    are slow."""
    slowdown: float = 1.0
    """Present length of a step divided by the usual length; 1 while they are not known."""
    present_s: float = 0.0
    """Present length of a step in seconds; 0 if it is not known."""
    most: float = 1.0
    """The largest slowdown since the steps became slower; 1 once they are back to usual. With it, a
    job whose slowdown is about a limit is slow all the time, not now and then."""
    _samples: int = 0
    """Number of samples since the steps became slower."""
    _for_s: float = 0.0
    """The sum of these samples, in seconds, each at least `SAMPLE_S`."""

    @property
    def is_slow(self) -> bool:
        """Whether the steps take longer than usual."""
        return self._samples > 0

    def begin(self, usual_s: float) -> None:
        """Begin with steps that are slower than this, if the usual length is not known yet."""
        self.usual_s = self.usual_s or usual_s
        self._samples = self._samples or 1

    def take(self, present_s: float, sample_s: float, by_rounds: Latest = NOT_SLOWER) -> bool:
        """Compare the present length of a step with the usual one, after a sample of this length.

        `by_rounds`: the latest steps as `throughput` measures them. They may be slow still.
        Returns True if the steps were slow for so long that their length is the usual one now.
        """
        if not self.usual_s:
            return False
        own = Latest(present_s / self.usual_s, present_s)
        self.slowdown, self.present_s = max(own, by_rounds) if self.is_slow else own
        if self.slowdown < BACK_TO_USUAL:
            self.end()
            return False
        self.most = max(self.most, self.slowdown)
        self._samples += 1
        self._for_s += max(sample_s, SAMPLE_S)
        is_long = self._for_s >= SLOW_FOR_S and self._samples > SLOW_STEPS
        is_steady = self._for_s >= SLOW_AT_LEAST_S and self._samples > MANY_SAMPLES
        if is_long or is_steady:
            self.end()
        return is_long or is_steady

    def end(self) -> None:
        """Forget that the steps were slow."""
        self.slowdown = self.most = 1.0
        self._samples, self._for_s = 0, 0.0
