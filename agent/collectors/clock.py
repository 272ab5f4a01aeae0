"""Collector: steps of the wall clock of the node.

watchtower itself measures with clocks that never step. But programs and libraries use the wall
clock: a step breaks their timeouts, expires tokens and certificates, and makes it hard to compare
the logs of several nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from agent.collectors.collector import Collector
from watchtower.service.metric_spec import Sample, counter
from watchtower.wire.observations import NODE, Observation

STEPS = counter(
    "watchtower_clock_steps_total", "", "Steps of the wall clock by more than half a second."
)

STEP_S = 0.5
"""Smallest step that is reported. Time services correct less than this by a slower or faster clock
(adjtimex(2)), which adds up to half a millisecond a second."""

REPORTED_S = 900.0
"""Seconds for which a step is reported."""


def read_clocks() -> tuple[float, float]:
    """Return the wall clock, and the clock that runs from boot on, also while the node sleeps."""
    return time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock(Collector):
    """Compares the wall clock with one that never steps."""

    name = "clock"
    metrics = (STEPS,)

    def __init__(self, read: Callable[[], tuple[float, float]] = read_clocks) -> None:
        """`read` returns the wall clock and a clock that never steps, in seconds."""
        self._clocks = read
        self._offset = self._read()
        self._steps = 0
        self._last: tuple[float, float] | None = None
        """When the last step was noticed, and its seconds."""

    def collect(self, now: float) -> Iterator[Observation]:
        """Return the last step, if it was in the last 15 minutes."""
        offset = self._read()
        if abs(step_s := offset - self._offset) >= STEP_S:
            self._steps += 1
            self._last = now, step_s
        self._offset = offset
        if self._last is None or now - self._last[0] > REPORTED_S:
            return
        at, step_s = self._last
        way = "forward" if step_s > 0 else "back"
        yield Observation(
            source=self.name,
            subject=NODE,
            name="clock_step",
            age_s=now - at,
            value=step_s,
            unit="s",
            text=f"the wall clock was set {way} by {abs(step_s):.1f} s",
        )

    def samples(self, wall_now: float) -> Iterator[Sample]:
        """Return the number of steps since the agent started."""
        yield Sample(STEPS, (), self._steps)

    def _read(self) -> float:
        wall, steady = self._clocks()
        return wall - steady
