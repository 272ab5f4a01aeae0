"""Token buckets: bursts, refills, debts, and keys that others invent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from watchtower.service.token_bucket import TokenBucket, TokenBuckets


def test_it_begins_full_and_fills_again_to_its_burst_and_no_further():
    bucket = TokenBucket(burst=3, per_s=0.5)
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]
    assert not bucket.take(101.0)
    assert bucket.take(102.0)
    assert bucket.left(1e9) == 3


def test_what_is_not_there_is_not_taken():
    bucket = TokenBucket(burst=3, per_s=1)
    assert not bucket.take(0.0, 4)
    assert bucket.take(0.0, 3)


def test_a_debt_is_worked_off():
    bucket = TokenBucket(burst=2, per_s=0.1)
    bucket.spend(0.0, 5.0)
    assert bucket.left(0.0) == -3.0
    assert bucket.left(29.0) < 0
    assert bucket.left(31.0) > 0


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0.001, 5)), max_size=50),
    st.floats(1, 10),
    st.floats(0.01, 10),
)
def test_no_more_is_taken_than_the_burst_and_the_time_give(steps, burst, per_s):
    bucket, now, taken = TokenBucket(burst, per_s), 0.0, 0.0
    for wait, count in steps:
        now += wait
        taken += count if bucket.take(now, count) else 0.0
    assert taken <= burst + now * per_s + 1e-6


def test_a_clock_that_goes_back_gives_and_takes_nothing():
    bucket = TokenBucket(burst=1, per_s=1)
    assert bucket.take(10.0)
    assert not bucket.take(5.0)
    assert not bucket.take(10.5)
    assert bucket.take(11.0)


def test_each_key_has_its_own_bucket():
    buckets = TokenBuckets[str](burst=1, per_s=1, most=8)
    assert buckets.use("a").take(0.0)
    assert not buckets.use("a").take(0.0)
    assert buckets.use("b").take(0.0)
    assert buckets.find("c") is None
    assert len(buckets) == 2


def test_invented_keys_make_no_tokens():
    buckets = TokenBuckets[int](burst=2, per_s=0.0, most=8)
    taken = sum(buckets.use(key).take(0.0) for key in range(1000))
    assert taken == 2 * 8
    assert len(buckets) == 8


def test_the_key_that_was_unused_for_longest_makes_room():
    buckets = TokenBuckets[str](burst=1, per_s=1, most=2)
    for key in ("a", "b", "a", "c"):
        buckets.use(key)
    assert buckets.find("b") is None
    assert buckets.find("a") is not None
