"""Jumps of the wall clock."""

from __future__ import annotations

import pytest

from agent.collectors.clock import REPORTED_S, WallClock


class Clock:
    """A wall clock that can be set."""

    def __init__(self) -> None:
        self.offset, self.now = 1_700_000_000.0, 50.0
        self.collector = WallClock(lambda: self.offset + self.now)

    def after(self, seconds: float):
        self.now += seconds
        return list(self.collector.collect(self.now))

    @property
    def steps(self) -> float:
        (sample,) = self.collector.samples(0.0)
        return sample.value


@pytest.fixture
def clock() -> Clock:
    made = Clock()
    assert made.after(1) == []
    return made


def test_time_that_passes_is_no_jump(clock: Clock):
    for seconds in (0.2, 1, 600, 90_000):
        assert clock.after(seconds) == []
    clock.offset += 0.4  # NTP
    assert clock.after(1) == []
    assert clock.steps == 0


@pytest.mark.parametrize(("by", "said"), [(3600.0, "forward by 3600 s"), (-7.0, "back by 7 s")])
def test_a_jump_is_reported_with_its_age_for_a_while(clock: Clock, by: float, said: str):
    clock.offset += by
    (found,) = clock.after(1)
    assert (found.name, found.value, found.age_s) == ("clock_step", by, 0.0)
    assert found.text == f"the wall clock jumped {said}"
    assert [each.age_s for each in clock.after(100)] == [100.0]
    assert clock.after(REPORTED_S) == []
    assert clock.steps == 1
