"""Wait counts: the dumps that they order, and the samples that they count."""

import math
import random

import pytest

from agent.dumps.triggers import ROUND_GAP_JITTERS, ROUND_GAP_S, SATISFIED_BY_S, DumpLedger
from agent.ranks.found_rank import JobKey
from tests.diagnosis.builders import IN_ALL_REDUCE, IN_DDP_BACKWARD, IN_USER_CODE, a_rank
from watchtower.diagnosis.causes.straggler import OTHERS_WAIT
from watchtower.jobs.dump_timing import jitter_s
from watchtower.jobs.effects import DiagnosisWanted, DumpsWanted
from watchtower.jobs.wait_counts import (
    DUMPS_BEFORE_DIAGNOSIS,
    MAX_DUMPS,
    REVIEW_S,
    SPREAD_S,
    WaitCount,
    WaitCounts,
)
from watchtower.wire.dumps import NativeKind, NativePlace

JOB = JobKey("j")


def count(wait_counts, *built):
    for item in built:
        wait_counts.take(item.evidence.dumps, item.stacks)


def effects_of(wait_counts, seconds):
    return [(at, effect) for at in range(seconds) for effect in wait_counts.tick(float(at))]


def orders_of(wait_counts, seconds):
    wanted = effects_of(wait_counts, seconds)
    return [at for at, effect in wanted if isinstance(effect, DumpsWanted)]


def test_dumps_are_ordered_one_after_the_other_and_then_diagnosed():
    wanted = effects_of(WaitCounts(since=0.0), 200)
    dumps = [at for at, effect in wanted if isinstance(effect, DumpsWanted)]
    asked = [at for at, effect in wanted if isinstance(effect, DiagnosisWanted)]
    assert len(dumps) == MAX_DUMPS
    assert asked[:-1] == dumps[DUMPS_BEFORE_DIAGNOSIS:]
    assert asked[-1] > dumps[-1]


def test_an_agent_may_carry_out_every_order():
    dumps = orders_of(WaitCounts(since=0.0), 200)
    ledger = DumpLedger()
    for at in dumps:
        assert not ledger.satisfies(JOB, at), "it would count as satisfied by the dump before"
        assert not ledger.is_exhausted(JOB, at)
        ledger.begin(JOB, at + SPREAD_S)
        ledger.end(JOB, at + SPREAD_S + ROUND_GAP_JITTERS * SPREAD_S + 0.5)  # of py-spy


@pytest.mark.parametrize("step_s", [0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 6.0, 8.0, 10.0, 12.0])
def test_samples_show_every_part_of_a_step(step_s: float):
    """A step takes exactly as long as each other one. The slow rank works all the time, the others
    wait in the last two thirds: they must be found waiting often, whenever the count begins."""
    orders = orders_of(WaitCounts(since=0.0), 200)
    shares = []
    for seed in range(100):
        draw = random.Random(seed)
        first, reported = step_s * draw.random(), draw.random()
        begun = [math.ceil(at - reported) + reported + SPREAD_S * draw.random() for at in orders]
        gap_s = max(ROUND_GAP_S, ROUND_GAP_JITTERS * SPREAD_S)
        samples = [first + at + gap for at in begun for gap in (0.0, gap_s)]
        shares.append(sum(at % step_s > step_s / 3 for at in samples) / len(samples))
    rarely_found = sum(share < OTHERS_WAIT for share in shares)
    assert rarely_found <= 10


def test_agents_of_a_large_job_have_time_for_their_dumps():
    wait_counts = WaitCounts(since=0.0)
    assert wait_counts.tick(0.0)
    wait_counts.by_rank.update((rank, WaitCount()) for rank in range(16_384))
    second = next(at for at in range(1, 100) if wait_counts.tick(float(at)))
    assert second >= 3 * jitter_s(16_384) + SATISFIED_BY_S


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


def test_a_wait_for_the_device_waits_whatever_the_line_is():
    wait_counts = WaitCounts(since=0.0)
    polls = NativePlace(kind=NativeKind.DEVICE_WAIT, library="libcuda.so.1", running=True)
    works = NativePlace(kind=NativeKind.PYTHON, library="libpython3.11.so.1.0", running=True)
    count(
        wait_counts,
        a_rank(0, IN_USER_CODE, state="R", active=True, native=polls),
        a_rank(1, IN_USER_CODE, state="R", active=True, native=works),
    )
    assert [count.waits for count in wait_counts.by_rank.values()] == [2, 0]


def test_a_failed_dump_is_not_a_sample():
    wait_counts = WaitCounts(since=0.0)
    count(wait_counts, a_rank(0, ""))
    assert wait_counts.by_rank == {}
