"""The census: which looks it orders, and what it counts."""

from tests.core.builders import IN_ALL_REDUCE, IN_DDP_BACKWARD, IN_USER_CODE, a_rank
from watchtower.core.detection.census import FIRST_ANSWER, LOOK_EVERY_S, LOOKS, REVIEW_S, Census
from watchtower.core.detection.effects import DiagnosisWanted, DumpsWanted


def count(census, *built):
    for item in built:
        census.take(item.evidence.dumps, item.stacks)


def effects_of(census, seconds):
    return [(at, effect) for at in range(seconds) for effect in census.step(float(at))]


def test_looks_are_ordered_one_after_the_other_and_it_is_asked_what_they_tell():
    wanted = effects_of(Census(since=0.0), 200)
    dumps = [at for at, effect in wanted if isinstance(effect, DumpsWanted)]
    asked = [at for at, effect in wanted if isinstance(effect, DiagnosisWanted)]
    assert dumps == [i * LOOK_EVERY_S for i in range(LOOKS)]
    assert asked == [i * LOOK_EVERY_S for i in range(FIRST_ANSWER, LOOKS + 1)]


def test_an_answer_ends_the_looks_and_a_job_that_stays_slow_is_counted_anew():
    census = Census(since=0.0)
    effects_of(census, 20)
    count(census, a_rank(0))
    census.settle(20.0)
    assert census.step(20.0 + REVIEW_S - 1) == []
    (effect,) = census.step(20.0 + REVIEW_S)
    assert isinstance(effect, DumpsWanted)
    assert census.tallies == {}


def test_a_look_counts_as_waiting_inside_a_collective_only():
    census = Census(since=0.0)
    count(census, a_rank(0, IN_ALL_REDUCE), a_rank(1, IN_USER_CODE))
    count(census, a_rank(0, IN_USER_CODE, dumps=1))
    assert (census.tallies[0].looks, census.tallies[0].waits) == (3, 2)
    assert (census.tallies[1].looks, census.tallies[1].waits) == (2, 0)


def test_backward_waits_when_it_sleeps_and_works_when_it_runs():
    census = Census(since=0.0)
    count(census, a_rank(0, IN_DDP_BACKWARD), a_rank(1, IN_DDP_BACKWARD, state="R", active=True))
    assert [tally.waits for tally in census.tallies.values()] == [2, 0]


def test_a_failed_dump_is_no_look():
    census = Census(since=0.0)
    count(census, a_rank(0, ""))
    assert census.tallies == {}
