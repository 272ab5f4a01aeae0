"""Wait counts: the dumps that they order, and the samples that they count."""

from tests.core.builders import IN_ALL_REDUCE, IN_DDP_BACKWARD, IN_USER_CODE, a_rank
from watchtower.core.detection.effects import DiagnosisWanted, DumpsWanted
from watchtower.core.detection.wait_counts import (
    DUMP_EVERY_S,
    DUMPS_BEFORE_DIAGNOSIS,
    MAX_DUMPS,
    REVIEW_S,
    WaitCounts,
)


def count(wait_counts, *built):
    for item in built:
        wait_counts.take(item.evidence.dumps, item.stacks)


def effects_of(wait_counts, seconds):
    return [(at, effect) for at in range(seconds) for effect in wait_counts.tick(float(at))]


def test_dumps_are_ordered_one_after_the_other_and_then_diagnosed():
    wanted = effects_of(WaitCounts(since=0.0), 200)
    dumps = [at for at, effect in wanted if isinstance(effect, DumpsWanted)]
    asked = [at for at, effect in wanted if isinstance(effect, DiagnosisWanted)]
    assert dumps == [i * DUMP_EVERY_S for i in range(MAX_DUMPS)]
    assert asked == [i * DUMP_EVERY_S for i in range(DUMPS_BEFORE_DIAGNOSIS, MAX_DUMPS + 1)]


def test_an_answer_ends_the_dumps_and_a_job_that_stays_slow_is_counted_anew():
    wait_counts = WaitCounts(since=0.0)
    effects_of(wait_counts, 20)
    count(wait_counts, a_rank(0))
    wait_counts.settle(20.0)
    assert wait_counts.tick(20.0 + REVIEW_S - 1) == []
    (effect,) = wait_counts.tick(20.0 + REVIEW_S)
    assert isinstance(effect, DumpsWanted)
    assert wait_counts.by_rank == {}


def test_a_sample_counts_as_waiting_inside_a_collective_only():
    wait_counts = WaitCounts(since=0.0)
    count(wait_counts, a_rank(0, IN_ALL_REDUCE), a_rank(1, IN_USER_CODE))
    count(wait_counts, a_rank(0, IN_USER_CODE, dumps=1))
    assert (wait_counts.by_rank[0].samples, wait_counts.by_rank[0].waits) == (3, 2)
    assert (wait_counts.by_rank[1].samples, wait_counts.by_rank[1].waits) == (2, 0)


def test_backward_waits_when_it_sleeps_and_works_when_it_runs():
    wait_counts = WaitCounts(since=0.0)
    count(
        wait_counts, a_rank(0, IN_DDP_BACKWARD), a_rank(1, IN_DDP_BACKWARD, state="R", active=True)
    )
    assert [count.waits for count in wait_counts.by_rank.values()] == [2, 0]


def test_a_failed_dump_is_not_a_sample():
    wait_counts = WaitCounts(since=0.0)
    count(wait_counts, a_rank(0, ""))
    assert wait_counts.by_rank == {}
