from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.scenes import World
from tests.jobs.story import Story, a_diagnosis, plain, stalled
from watchtower.jobs.condition import ConditionKind, Why
from watchtower.jobs.effects import (
    IncidentClosed,
    IncidentOpened,
    PauseLearned,
    StatusChanged,
)
from watchtower.jobs.pace import (
    FADE_A_DAY,
    GROUP,
    GROUPS,
    LEARNED_AFTER,
    MAX_PAUSES,
    MIN_BASELINE_ROUNDS,
    ROUND_STEPS,
    Latest,
    Pace,
    Pause,
    Pauses,
    Throughput,
)
from watchtower.jobs.stall_context import StallContext
from watchtower.jobs.stillness import LOGS_WAIT_S, patience_for
from watchtower.policy import Policy
from watchtower.wire.verdict import Cause, Status


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


USUAL, SLOW = 1.1, 2.7
LEAST = ROUND_STEPS * (MIN_BASELINE_ROUNDS + GROUP * GROUPS)


def run(*steps: float, tick_s: float = 1.0) -> Throughput:
    """Let steps of these seconds pass. The tower checks once a tick."""
    throughput, made, now = Throughput(), 0, 0.0
    throughput.take(0, now)
    for number, seconds in enumerate(steps, 1):
        now += seconds
        while now - made >= tick_s:
            made += tick_s
            throughput.take(number - (now > made), made)
    return throughput


def bursts(step_s: float, count: int, ahead: int) -> list[float]:
    """Quick steps, then one that takes what the device needs for all of them."""
    quick = 0.15
    return ([quick] * (ahead - 1) + [ahead * step_s - quick * (ahead - 1)]) * (count // ahead)


@pytest.mark.parametrize("ahead", [1, 2, 3, 4])
def test_bursts_of_slow_steps_are_slow(ahead):
    slow = run(*bursts(USUAL, 48, ahead), *bursts(SLOW, 72, ahead)).slowness
    assert slow.usual_s == pytest.approx(USUAL, rel=0.1)
    assert slow.slowdown == pytest.approx(SLOW / USUAL, rel=0.15)
    assert run(*bursts(USUAL, 120, ahead)).slowness.most == 1


def test_one_group_shows_that_a_slow_job_is_slow_still():
    assert run(*[USUAL] * 48, *[SLOW] * 24).latest.slowdown > 2
    assert run(*[USUAL] * 48, *[SLOW] * 24, *[USUAL] * 24).latest.slowdown < 1.5
    pace = Pace()
    for sample, by_rounds in [(1.0, 1.0)] * 12 + [(3.0, 1.0)] * 4 + [(1.0, 2.5)] * 9:
        pace.note(sample)
        pace.end_tick(Latest(by_rounds, 2.7))
    assert (pace.slowness.slowdown, pace.slowness.present_s) == (2.5, 2.7)
    pace.note(1.0)
    pace.end_tick(Latest(1.1, 1.2))
    assert not pace.slowness.is_slow


def test_no_job_is_slow_only_because_one_group_is():
    pace = Pace()
    for _ in range(20):
        pace.note(1.0)
        pace.end_tick(Latest(2.5, 2.7))
    assert pace.slowness.most == 1


def test_a_job_is_slow_only_after_all_groups_are():
    assert run(*[USUAL] * 48, *[SLOW] * 36).slowness.most == 1
    assert run(*[USUAL] * 48, *[SLOW] * 60).slowness.most > 2


def test_a_job_that_is_back_at_its_usual_pace_is_not_slow_by_rounds():
    slow = run(*[USUAL] * 48, *[SLOW] * 60, *[USUAL] * 60).slowness
    assert (slow.most, slow.is_slow) == (1, False)


def test_the_usual_length_does_not_change_while_the_steps_are_slow_by_rounds():
    assert run(*[USUAL] * 48, *[SLOW] * 240).slowness.usual_s == pytest.approx(USUAL, rel=0.1)


def test_a_job_slow_for_half_an_hour_has_a_new_usual_length():
    assert run(*[USUAL] * 48, *[SLOW] * 800).slowness.most == 1


@pytest.mark.parametrize("pause", [[20.0] * 3, [600.0], [86400.0]])
def test_a_few_pauses_are_not_slow(pause):
    steps = [step for length in pause for step in ([length] + [1.0] * 20)]
    assert run(*[1.0] * 100, *steps).slowness.most < 1.5


@pytest.mark.parametrize(("every", "pause_s"), [(50, 30.0), (100, 300.0), (10, 10.0)])
def test_pauses_that_come_at_regular_steps_are_not_slow(every, pause_s):
    steps = [pause_s if n % every == 0 else 1.0 for n in range(1, 600)]
    assert run(*steps).slowness.most < 2


@pytest.mark.long
@pytest.mark.parametrize("share", [0.01, 0.02, 0.05])
@pytest.mark.parametrize("pause_s", [20.0, 60.0])
def test_pauses_by_chance_are_not_slow(share, pause_s):
    rng = random.Random(7)
    jobs = (
        [rng.uniform(0.9, 1.1) + pause_s * (rng.random() < share) for _ in range(600)]
        for _ in range(20)
    )
    assert not any(run(*job).slowness.most >= 2 for job in jobs)


def test_a_count_that_begins_anew_is_no_step():
    throughput = Throughput()
    for epoch in range(4):
        for number in range(40):
            throughput.take(number, 100.0 * epoch + number)
    assert throughput.slowness.most == 1


def test_no_round_goes_through_a_phase():
    throughput, now = Throughput(), 0.0
    for number in range(600):
        now += 3.0 if number % 120 < 40 else 1.0
        if number % 120 < 40:
            throughput.interrupt()
        else:
            throughput.take(number, now)
    assert throughput.slowness.most == 1


def test_a_phase_shorter_than_a_round_belongs_to_no_round():
    world = World()
    train(world, 60)
    for _ in range(80):
        train(world, 1)
        train(world, 2, phase="evaluation", steps=0)
    assert world.attempt.throughput.slowness.most == 1


def train(world: World, seconds: int, *, phase: str = "", steps: int = 4) -> None:
    """Let all ranks make so many steps a second."""
    for _ in range(seconds):
        for rank in world.ranks.values():
            rank.step += steps
            rank.phase, rank.beat_at = phase, world.now
        world.report(1)


def test_little_is_known_of_a_short_job():
    assert run(*[1.0] * (LEAST // 2), *[5.0] * (LEAST // 2 - 8)).slowness.most == 1


def test_steps_before_the_patience_is_over_are_a_pause_to_remember():
    story = Story()
    story.see(stalled())
    story.hear(a_diagnosis())
    story.see(stalled(), seconds=5)
    effects = story.see(plain(ConditionKind.STEPPING))
    assert story.watch.status is Status.HEALTHY
    learned = [effect.pause for effect in effects if isinstance(effect, PauseLearned)]
    assert [(pause.frame_class, pause.length_s) for pause in learned] == [("dataloader", 11.0)]
    assert IncidentOpened not in story.kinds()


def test_a_long_start_is_not_learned_as_a_pause():
    story = Story()
    story.see(stalled(why=Why.STARTUP), starting=True)
    story.hear(a_diagnosis(suspects_moving=True, suspect_class="user"))
    story.see(stalled(why=Why.STARTUP), seconds=900, starting=True)
    assert story.watch.status is Status.SUSPECT
    effects = story.see(plain(ConditionKind.STEPPING))
    assert [type(effect) for effect in effects] == [StatusChanged]
    assert not story.watch.pauses


def test_a_pause_seen_before_gets_more_patience():
    story = Story()
    for length in (9, 12):
        story.see(stalled(since=story.now - 6))
        story.hear(a_diagnosis())
        story.see(stalled(since=story.now - 6), seconds=length)
        story.see(plain(ConditionKind.STEPPING))
    assert story.watch.status is Status.HEALTHY
    assert IncidentOpened not in story.kinds()


def test_a_gpu_that_was_idle_for_a_while_alone_is_a_pause_that_gets_more_patience():
    """A copy to the host does not count as load: another GPU may seem idle until it ends."""
    story = Story()
    for length in (9, 12):
        story.see(stalled(since=story.now - 6))
        story.hear(a_diagnosis(Cause.GPU_FAULT, is_shown_by_gpus=True, suspects_rest=True))
        story.see(stalled(since=story.now - 6), seconds=length)
        story.see(plain(ConditionKind.STEPPING))
    assert story.watch.status is Status.HEALTHY
    assert IncidentOpened not in story.kinds()


def test_a_death_that_peers_survive_is_not_learned_as_a_pause():
    story = Story()
    story.see(stalled(why=Why.DEATH))
    story.hear(a_diagnosis(Cause.PROCESS_DIED))
    effects = story.see(plain(ConditionKind.STEPPING))
    assert [type(effect) for effect in effects] == [StatusChanged]


def test_an_incident_is_not_learned_as_a_pause():
    story = Story()
    story.see(stalled())
    story.hear(a_diagnosis(suspects_moving=True))
    story.see(stalled(), seconds=10_800)
    effects = story.see(plain(ConditionKind.STEPPING))
    assert [type(e) for e in effects] == [StatusChanged, IncidentClosed]
    assert not story.watch.pauses


def test_patience_is_limited_for_pauses_of_any_length():
    context = StallContext(typical_s=1.0)
    pauses = Pauses((Pause(phase="", frame_class="dataloader", length_s=10_800.0),))
    patience = patience_for(a_diagnosis(), context, pauses, Policy())
    assert patience.hung_s == Policy().learned_max_s
    assert patience.reason == "a pause of 10800 s was seen here before"
    lacks_logs = a_diagnosis(Cause.UNKNOWN, unlogged=(1,))
    patience = patience_for(lacks_logs, context, pauses, Policy())
    assert patience.hung_s == Policy().learned_max_s + LOGS_WAIT_S
    assert patience.reason.endswith("before; collective logs of some ranks are missing")
