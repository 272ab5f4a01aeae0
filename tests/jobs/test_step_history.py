"""The step history of a job: evenly spaced, bounded, and given up when memory is short."""

from __future__ import annotations

from itertools import pairwise

from tests.jobs.scenes import World
from watchtower.jobs.measures import (
    COARSE_POINTS,
    COARSE_S,
    FINE_POINTS,
    FINE_S,
    MAX_PHASES_KEPT,
    StepHistory,
    find_phase,
)
from watchtower.wire.verdict import Status


def note(history: StepHistory, seconds: float, begin: float = 1000.0, phase: str = "") -> float:
    """Note twice a second, as the tower ticks; return the time after it."""
    ticks = round(seconds * 2)
    for tick in range(ticks):
        now = begin + tick / 2
        history.note(int(now), Status.HEALTHY, phase, now)
    return begin + ticks / 2


def test_points_are_evenly_spaced():
    history = StepHistory()
    end = note(history, 61)
    points = history.fine(end)
    assert [point.step for point in points] == list(range(1000, 1061, 5))
    assert {round(a.age_s - b.age_s, 3) for a, b in pairwise(points)} == {FINE_S}
    assert points[-1].age_s == end - 1060
    assert [point.step for point in history.coarse(end)] == [1000]


def test_both_rings_are_bounded():
    history = StepHistory()
    for now in range(0, 200_000, 5):
        history.note(now, Status.HEALTHY, "", float(now))
    assert len(history.fine(200_000.0)) == FINE_POINTS
    assert len(history.coarse(200_000.0)) == COARSE_POINTS
    assert history.coarse(200_000.0)[-1].step % COARSE_S == 0
    assert history.droppable_bytes < 6000


def test_a_pause_of_the_tower_leaves_points_without_a_step():
    history = StepHistory()
    end = note(history, 11)
    note(history, 6, end + 20)
    steps = [point.step for point in history.fine(end + 26)]
    assert steps == [1000, 1005, 1010, None, None, None, 1031, 1035]
    note(history, 1, end + 1e6)
    assert len(history.fine(end + 1e6)) == FINE_POINTS


def test_status_and_phase_of_each_point():
    history = StepHistory()
    history.note(-1, Status.HEALTHY, "", 0.0)
    history.note(7, Status.HUNG, "checkpoint", 5.0)
    before, after = history.fine(5.0)
    assert (before.step, before.status, before.phase) == (None, Status.HEALTHY, "")
    assert (after.step, after.status, after.phase) == (7, Status.HUNG, "checkpoint")


def test_a_program_that_numbers_its_phases_fills_no_memory():
    history = StepHistory()
    for number in range(1000):
        history.note(number, Status.MONITORING_LOST, f"phase {number}", FINE_S * number)
    assert history.fine(5000.0)[-1].phase == ""
    assert len(history._phases) == MAX_PHASES_KEPT + 1


def test_it_is_given_up_when_memory_is_short():
    history = StepHistory()
    assert history.droppable_bytes == 0
    note(history, 60, phase="warm-up")
    assert history.droppable_bytes > 0
    history.drop(1)
    assert (history.droppable_bytes, history.fine(2000.0)) == (0, [])
    note(history, 6, 2000.0)
    assert [point.step for point in history.fine(2006.0)] == [2000, 2005]


def test_the_phase_of_most_ranks():
    world = World(size=4)
    for rank in (0, 1):
        world.ranks[rank].phase = "checkpoint"
    world.report()
    assert find_phase(world.gen.live()) == ""
    world.ranks[2].phase = "checkpoint"
    world.report()
    assert find_phase(world.gen.live()) == "checkpoint"
    assert find_phase([]) == ""
