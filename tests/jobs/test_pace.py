import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchtower.jobs.pace import FADE_A_DAY, LEARNED_AFTER, MAX_PAUSES, Pace, Pause, Pauses


def paced(*samples: float) -> Pace:
    pace = Pace()
    for sample in samples:
        pace.note(sample)
        pace.end_tick()
    return pace


def test_a_pace_is_not_known_before_enough_steps():
    assert not paced(1.0, 1.0).is_learned
    assert paced(1.0, 1.0).typical_s == 0
    assert paced(1.0, 1.0, 1.0).is_learned


def test_the_typical_step_is_near_the_slow_end_of_plain_steps():
    pace = paced(*[1.0 + 0.01 * i for i in range(20)])
    assert 1.15 <= pace.typical_s <= 1.2


def test_a_pause_does_not_count_as_a_step():
    pace = paced(1.0, 1.0, 1.0, 1.0, 60.0, 1.0, 1.0)
    assert pace.typical_s == 1.0


def test_pauses_that_alternate_with_steps_stay_pauses():
    pace = paced(1.0, 1.0, 1.0, *[20.0, 1.0] * 20)
    assert pace.typical_s == 1.0
    assert pace.slowness.slowdown == 1.0


def test_steps_that_all_become_slower_are_a_new_pace():
    pace = paced(*[1.0] * 10, *[10.0] * 6)
    assert pace.typical_s == 10.0
    assert pace.slowness.slowdown == 10.0


def test_steps_three_times_as_long_are_slow_after_four_of_them():
    assert paced(*[1.0] * 12, *[3.0] * 3).slowness.slowdown == 1.0
    assert paced(*[1.0] * 12, *[3.0] * 4).slowness.slowdown == 3.0


def test_the_usual_length_does_not_change_while_the_steps_are_slow():
    assert paced(*[1.0] * 12, *[3.0] * 60).slowness.slowdown == 3.0


def test_the_most_slowdown_stays_until_the_steps_are_back_to_usual():
    pace = paced(*[1.0] * 12, *[2.2] * 7, *[1.8] * 7)
    assert (pace.slowness.slowdown, pace.slowness.most) == (1.8, 2.2)
    assert paced(*[1.0] * 12, *[2.2] * 7, *[1.4] * 7).slowness.most == 1.0


def test_single_slow_steps_and_jitter_are_not_slow():
    assert paced(*[1.0, 0.9, 1.1, 1.0, 3.0] * 30).slowness.slowdown == 1.0


def test_a_recalled_pace_is_the_usual_length():
    pace = Pace()
    pace.recall(1.0)
    for _ in range(12):
        pace.note(3.0)
        pace.end_tick()
    assert pace.slowness.slowdown == 3.0


def test_a_job_that_is_back_at_its_usual_pace_is_not_slow():
    pace = paced(*[1.0] * 10, *[10.0] * 6, *[1.0] * 20)
    assert pace.slowness.slowdown == 1.0


def test_a_job_slow_for_long_has_a_new_usual_pace():
    pace = paced(*[1.0] * 10, *[10.0] * 200)
    assert pace.slowness.slowdown == 1.0


@pytest.mark.parametrize("step_s", [0.01, 0.2, 0.5])
def test_a_job_of_short_steps_stays_slow_for_five_minutes(step_s):
    """Enough to count which rank its peers wait for, which takes seconds whatever the steps."""
    usual, slow_s = [step_s] * 40, 3 * step_s
    counted_s = max(slow_s, 0.5)
    assert paced(*usual, *[slow_s] * int(290 / counted_s)).slowness.slowdown == pytest.approx(3)
    assert paced(*usual, *[slow_s] * int(310 / counted_s)).slowness.slowdown == 1


def test_a_job_of_long_steps_that_became_slower_has_a_new_usual_pace_after_half_an_hour():
    assert paced(*[60.0] * 12, *[180.0] * 15).slowness.slowdown == 3.0
    pace = paced(*[60.0] * 12, *[180.0] * 30)
    assert pace.slowness.slowdown == 1.0
    assert paced(*[60.0] * 12, *[180.0] * 60).slowness.slowdown == 1.0


def test_a_few_quick_steps_at_the_start_are_not_the_usual_length():
    pace = paced(*[1.0] * 3, *[238.0] * 60)
    assert (pace.slowness.slowdown, pace.typical_s) == (1.0, 238.0)
    assert paced(*[0.01] * 4, *[30.0] * 60).slowness.slowdown == 1.0


def test_after_a_few_quick_steps_the_long_ones_are_the_usual_length():
    assert paced(*[1.0] * 3, *[30.0] * 20, *[90.0] * 4).slowness.slowdown == 3.0


@pytest.mark.parametrize("cycle", [[1.0, 25.0], [1.0] * 6 + [25.0], [25.0] * 4 + [1.0]])
def test_a_pause_that_keeps_coming_back_is_known(cycle):
    pace = paced(*[1.0] * 3, *cycle * 10)
    assert (pace.typical_s, pace.pause_s, pace.slowness.slowdown) == (1.0, 25.0, 1.0)


def test_a_pause_that_comes_once_or_twice_does_not_extend_the_deadline():
    assert paced(*[1.0] * 20, 300.0, *[1.0] * 5).pause_s == 0.0
    assert paced(*[*[1.0] * 20, 300.0] * 20).pause_s == 0.0
    assert paced(*[1.0] * 20, 300.0, *[25.0, 1.0] * 3).pause_s == 25.0


@given(st.lists(st.floats(0.85, 1.15), min_size=3, max_size=60))
def test_jitter_is_not_a_pause_and_does_not_change_deadlines(samples):
    assert paced(*samples).pause_s == 0.0


def test_a_pause_that_does_not_come_back_is_dropped():
    assert paced(*[1.0, 25.0] * 10, *[1.0] * 32).pause_s == 0.0


def test_one_tick_is_one_sample_however_many_ranks_report():
    pace = Pace()
    for _ in range(LEARNED_AFTER):
        for interval in (0.9, 1.0, 1.1):
            pace.note(interval)
        pace.end_tick()
    pace.end_tick()
    assert list(pace.plain) == [1.0] * LEARNED_AFTER


@given(st.lists(st.floats(0.01, 100), min_size=3, max_size=60))
def test_the_typical_step_is_one_that_was_seen(samples):
    assert paced(*samples).typical_s in samples


def test_the_longest_pause_of_a_kind_is_remembered():
    pauses = Pauses((Pause(phase="", frame_class="user", length_s=20.0),))
    assert not pauses.learn(Pause(phase="", frame_class="user", length_s=10.0))
    assert pauses.learn(Pause(phase="", frame_class="user", length_s=30.0))
    assert pauses.longest("", "user") == 30.0
    assert pauses.longest("", "dataloader") == 0.0
    assert pauses.longest_in("") == 30.0


def test_a_pause_that_does_not_come_again_fades():
    pauses = Pauses((Pause(phase="", frame_class="user", length_s=100.0),))
    for _ in range(7):
        pauses.fade(FADE_A_DAY)
    assert 1.5 * pauses.longest("", "user") > 100.0
    for _ in range(7):
        pauses.fade(FADE_A_DAY)
    assert pauses.longest("", "user") < 50.0
    assert pauses.learn(Pause(phase="", frame_class="user", length_s=60.0))
    for _ in range(100):
        pauses.fade(FADE_A_DAY)
    assert not pauses


def test_of_many_kinds_of_pauses_the_longest_are_remembered():
    pauses = Pauses()
    for number in range(MAX_PAUSES + 10):
        pauses.learn(Pause(phase=f"epoch-{number}", frame_class="", length_s=10.0 + number))
    assert pauses.longest("epoch-9", "") == 0.0
    assert pauses.longest("epoch-10", "") == 20.0
    assert pauses.longest(f"epoch-{MAX_PAUSES + 9}", "") == 147.0
