"""Throughput: steps that come in bursts, pauses, and what is neither."""

import random

import pytest

from tests.jobs.scenes import World
from watchtower.jobs.pace import (
    GROUP,
    GROUPS,
    MIN_BASELINE_ROUNDS,
    ROUND_STEPS,
    Latest,
    Pace,
    Throughput,
)

USUAL, SLOW = 1.1, 2.7
LEAST = ROUND_STEPS * (MIN_BASELINE_ROUNDS + GROUP * GROUPS)


def run(*steps: float, tick_s: float = 1.0) -> Throughput:
    """Let steps of these seconds pass. The tower looks once a tick."""
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


def test_a_job_that_is_back_at_its_usual_pace_is_not_slow():
    slow = run(*[USUAL] * 48, *[SLOW] * 60, *[USUAL] * 60).slowness
    assert (slow.most, slow.is_slow) == (1, False)


def test_the_usual_length_does_not_change_while_the_steps_are_slow():
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
    assert world.gen.throughput.slowness.most == 1


def train(world: World, seconds: int, *, phase: str = "", steps: int = 4) -> None:
    """Let all ranks make so many steps a second."""
    for _ in range(seconds):
        for rank in world.ranks.values():
            rank.step += steps
            rank.phase, rank.beat_at = phase, world.now
        world.report(1)


def test_little_is_known_of_a_short_job():
    assert run(*[1.0] * (LEAST // 2), *[5.0] * (LEAST // 2 - 8)).slowness.most == 1
