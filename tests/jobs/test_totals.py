"""Steps made, and seconds lost in hangs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchtower.jobs.measures import JobTotals
from watchtower.wire.verdict import Status


def run(totals: JobTotals, seconds: int, status: Status, since: float | None = None, at: int = 0):
    """Advance once a second without steps."""
    return sum(totals.advance(1, 5, status, since, at + n) for n in range(1, seconds + 1))


def test_steps_count_forward_and_restarts_count_the_steps_that_are_made_again():
    totals = JobTotals()
    for attempt, step in ((1, -1), (1, 40), (1, 43), (2, -1), (2, 30), (2, 45)):
        totals.advance(attempt, step, Status.HEALTHY, None, 0.0)
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
    for attempt, step, status, passed in story:
        before = totals.steps, totals.watched_s, totals.lost_s
        now += passed
        totals.advance(attempt, step, status, now - 2 * passed, now)
        assert all(a <= b for a, b in zip(before, _values(totals), strict=True))
        assert totals.lost_s <= totals.watched_s


def _values(totals: JobTotals) -> tuple[float, float, float]:
    return totals.steps, totals.watched_s, totals.lost_s
