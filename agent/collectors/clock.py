"""Collector: whether the wall clock of the node was set.

Programs that measure a timeout with the wall clock wait for hours, or not at all, after a step of
it. Tokens and certificates of services outside the job become invalid. watchtower itself uses no
wall clock for its ages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from watchtower.metric_spec import Sample, counter
from watchtower.wire.observations import NODE, Observation

STEPS = counter(
    "watchtower_clock_steps_total",
    "",
    "How often the wall clock of the node jumped by a second or more while the agent ran.",
)

LEAST_S = 1.0
"""A smaller step is not reported. NTP corrects small ones by another speed of the clock."""

REPORTED_S = 900.0
"""Seconds for which a step is reported."""


class WallClock:
    """Compares the wall clock with a clock that is never set."""

    name = "clock"
    metrics = (STEPS,)
    is_absent = False
    can_read = True

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._offset: float | None = None
        self._step: tuple[float, float] | None = None
        """When the clock was last set, and by how many seconds."""
        self._steps = 0

    def collect(self, now: float) -> Iterator[Observation]:
        """Return the last step of the last 15 minutes."""
        offset = self._wall() - now
        if self._offset is not None and abs(offset - self._offset) >= LEAST_S:
            self._step = now, offset - self._offset
            self._steps += 1
        self._offset = offset
        if self._step is not None and now - self._step[0] <= REPORTED_S:
            at, step_s = self._step
            way = "forward" if step_s > 0 else "back"
            yield Observation(
                source=self.name,
                subject=NODE,
                name="clock_step",
                age_s=now - at,
                value=step_s,
                unit="s",
                text=f"the wall clock jumped {way} by {abs(step_s):.0f} s",
            )

    def samples(self, wall_now: float) -> Iterator[Sample]:
        """Return how often the clock was set."""
        yield Sample(STEPS, (), self._steps)

    def gap(self) -> str:
        """Return an empty text: a clock can always be read."""
        return ""

    def stop(self) -> None:
        """Do nothing: no file is open."""
