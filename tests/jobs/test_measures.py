"""What is counted of a job: its steps over time, its totals, its ranks by lag and phase."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.scenes import World
from watchtower.jobs.measures import (
    COARSE_POINTS,
    COARSE_S,
    FINE_POINTS,
    FINE_S,
    LAGS,
    MAX_PHASES_COUNTED,
    MAX_PHASES_KEPT,
    MOST_LAG,
    JobTotals,
    StepHistory,
    count_ranks,
    find_phase,
    step_quantiles,
)
from watchtower.jobs.pace import Pace
from watchtower.jobs.ranks import RankRecord
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
    assert find_phase(world.attempt.live()) == ""
    world.ranks[2].phase = "checkpoint"
    world.report()
    assert find_phase(world.attempt.live()) == "checkpoint"
    assert find_phase([]) == ""


def run(totals: JobTotals, seconds: int, status: Status, since: float | None = None, at: int = 0):
    """Advance once a second without steps."""
    return sum(totals.advance(1, 5, status, since, at + n) for n in range(1, seconds + 1))


def test_steps_count_forward_and_restarts_count_the_steps_that_are_made_again():
    totals = JobTotals()
    for judgement, step in ((1, -1), (1, 40), (1, 43), (2, -1), (2, 30), (2, 45)):
        totals.advance(judgement, step, Status.HEALTHY, None, 0.0)
    assert totals.steps == 3 + 15


def test_a_program_that_numbers_its_steps_from_0_again_is_counted():
    totals = JobTotals()
    for step in (8, 9, 0, 1, 2):
        totals.advance(1, step, Status.HEALTHY, None, 0.0)
    assert totals.steps == 3


def test_a_rank_that_reports_late_makes_no_steps():
    totals = JobTotals()
    for step in (1000, -1, 1001):
        totals.advance(1, step, Status.HEALTHY, None, 0.0)
    assert totals.steps == 0


def test_a_hang_is_lost_from_its_last_step_and_a_pause_is_not():
    totals = JobTotals()
    totals.advance(1, 5, Status.HEALTHY, None, 0.0)
    assert run(totals, 20, Status.SUSPECT, 2.0) == 0
    assert run(totals, 5, Status.HEALTHY, at=20) == 0
    assert run(totals, 15, Status.SUSPECT, 26.0, at=25) == 0
    assert run(totals, 10, Status.HUNG, 26.0, at=40) == 24
    assert run(totals, 10, Status.RECOVERED, at=50) == 0
    assert (totals.lost_s, totals.watched_s) == (24, 60)


@pytest.mark.parametrize("status", [Status.ENDED, Status.SUSPENDED, Status.MONITORING_LOST])
def test_time_out_of_sight_is_neither_watched_nor_lost(status: Status):
    totals = JobTotals()
    totals.advance(1, 5, Status.HEALTHY, None, 0.0)
    run(totals, 30, status)
    assert (totals.lost_s, totals.watched_s) == (0, 0)


def test_a_tower_that_starts_on_a_hung_job_has_not_seen_the_time_before():
    totals = JobTotals()
    totals.advance(1, 5, Status.HUNG, -500.0, 0.0)
    assert run(totals, 10, Status.HUNG, -500.0) == 10


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3), st.integers(-1, 50), st.sampled_from(Status), st.floats(0, 1000)
        )
    )
)
def test_the_lost_time_is_at_most_the_watched_time_and_totals_never_fall(story):
    totals, now = JobTotals(), 0.0
    for judgement, step, status, passed in story:
        before = totals.steps, totals.watched_s, totals.lost_s
        now += passed
        totals.advance(judgement, step, status, now - 2 * passed, now)
        assert all(a <= b for a, b in zip(before, _values(totals), strict=True))
        assert totals.lost_s <= totals.watched_s


def _values(totals: JobTotals) -> tuple[float, float, float]:
    return totals.steps, totals.watched_s, totals.lost_s


def records(*beats: tuple[int, str]) -> list[RankRecord]:
    """Live ranks at these steps, in these phases."""
    world = World(size=len(beats))
    world.report()
    found = []
    for record, (step, phase) in zip(world.attempt.ranks.values(), beats, strict=True):
        assert record.vitals.beat
        beat = replace(record.vitals.beat, step=step, phase=phase)
        record.vitals = replace(record.vitals, beat=beat)
        found.append(record)
    return found


def test_ranks_are_counted_by_the_steps_behind_the_first():
    found = records(*((step, "") for step in (20, 20, 19, 18, 16, 15, 11, 10, -1)))
    assert count_ranks(found).lags == {"0": 2, "1": 1, "2-4": 2, "5-9": 2, "10+": 2}


def test_ended_ranks_and_ranks_without_heartbeats_are_not_counted():
    found = records((5, ""), (5, ""), (5, ""))
    found[0].ended_at = 1.0
    found[1].vitals = replace(found[1].vitals, beat=None)
    assert sum(count_ranks(found).lags.values()) == 1
    assert sum(count_ranks([]).lags.values()) == 0


def test_the_first_phases_of_a_job_keep_their_groups():
    first = count_ranks(records(*((1, f"phase {n}") for n in range(20)), (1, "")))
    assert len(first.known) == MAX_PHASES_COUNTED
    assert first.phases == {
        "training": 1,
        **dict.fromkeys(first.known, 1),
        "other": 20 - MAX_PHASES_COUNTED,
    }
    later = count_ranks(records((1, "phase 99"), (1, first.known[0])), first.known)
    assert later.phases.keys() == first.phases.keys()
    assert (later.phases["other"], later.phases[first.known[0]]) == (1, 1)


def test_a_phase_named_as_one_of_our_groups_joins_it():
    counts = count_ranks(records((1, "training"), (1, "other"), (1, "")))
    assert counts.phases == {"training": 2, "other": 1}


@given(st.lists(st.tuples(st.integers(-1, 10**9), st.text(max_size=3)), min_size=1, max_size=40))
def test_every_rank_is_counted_once_in_few_groups(beats: list[tuple[int, str]]):
    counts = count_ranks(records(*beats))
    assert counts.lags.keys() == {*LAGS, MOST_LAG}
    assert sum(counts.lags.values()) == sum(counts.phases.values()) == len(beats)
    assert len(counts.phases) <= MAX_PHASES_COUNTED + 2


def test_quantiles_are_of_the_latest_steps():
    pace = Pace()
    assert step_quantiles(pace) == {}
    pace.plain.extend([9.0] * 50 + [1.0] * 20 + [2.0] * 10)
    assert step_quantiles(pace) == {0.5: 1.0, 0.95: 2.0}
