"""How owners share places, lists and rates."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from watchtower.service import sharing as module
from watchtower.service.sharing import (
    ALWAYS_FIRST,
    CALM,
    ENDED,
    HALF_LIFE_S,
    IN_TROUBLE,
    OPEN_INCIDENT,
    Contender,
    FairPlaces,
    Ticket,
    TokenBucket,
    TokenBuckets,
    has_share,
    rank_fairly,
)


def owners(tickets: list[Ticket]) -> list[str]:
    return [ticket.owner for ticket in tickets]


def test_the_first_owner_has_half_the_next_a_quarter():
    held: Counter[str] = Counter()
    for owner in "aaaaaaaabbbbccdd":
        held[owner] += has_share(held, owner, 8)
    assert held == {"a": 4, "b": 2, "c": 1, "d": 1}


def test_the_last_free_place_is_for_an_owner_that_holds_none():
    places = FairPlaces(3)
    for _ in range(5):
        places.ask("a")
    assert owners(places.hand_out(0.0)) == ["a", "a"]
    places.ask("b")
    assert owners(places.hand_out(0.0)) == ["b"]


def test_an_owner_of_many_requests_waits_for_itself():
    places = FairPlaces(1)
    for owner in "aaab":
        places.ask(owner)
    served = []
    for now in range(4):
        (ticket,) = places.hand_out(float(now))
        served.append(ticket.owner)
        places.leave(ticket, now + 1.0)
    assert served == ["a", "b", "a", "a"]


def test_the_requests_of_one_owner_come_in_their_order():
    places = FairPlaces(1)
    asked = {order: places.ask("a", order=order) for order in [(1, 0), (0, 1), (0, 0)]}
    served = []
    for now in range(3):
        (ticket,) = places.hand_out(float(now))
        served.append(next(order for order, each in asked.items() if each is ticket))
        places.leave(ticket, float(now))
    assert served == [(0, 0), (0, 1), (1, 0)]


def test_one_that_leaves_the_last_place_waits_for_all_others():
    places = FairPlaces(3)
    for owner in "abcd":
        places.ask(owner, leaves_last=True)
    assert owners(places.hand_out(0.0)) == ["a", "b"]
    places.ask("d")
    (good,) = places.hand_out(0.0)
    assert (good.owner, good.leaves_last) == ("d", False)


def test_of_one_place_there_is_no_last_one_to_leave():
    places = FairPlaces(1)
    ticket = places.ask("a", leaves_last=True)
    assert places.hand_out(0.0) == [ticket]


def test_use_of_long_ago_counts_little():
    places = FairPlaces(1)
    (ticket,) = (places.ask("a"), *places.hand_out(0.0))[1:]
    places.leave(ticket, 8.0)
    later = 8.0 + 4 * HALF_LIFE_S
    (ticket,) = (places.ask("b"), *places.hand_out(later))[1:]
    places.leave(ticket, later + 1.0)
    places.ask("b")
    places.ask("a")
    assert owners(places.hand_out(later + 1.0)) == ["a"]


def test_whoever_waits_no_longer_takes_no_place():
    places = FairPlaces(1)
    first, second, third = (places.ask("a") for _ in range(3))
    places.leave(first, 0.0)
    places.leave(second, 0.0)
    assert places.hand_out(0.0) == [third]
    places.leave(third, 1.0)
    places.leave(third, 1.0)  # once is enough
    assert places.ask("b") in places.hand_out(1.0)
    assert places.hand_out(1.0) == []


def test_what_is_remembered_of_owners_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_USERS", 10)
    places = FairPlaces(1)
    for number in range(50):
        places.ask(f"o{number}", founder=f"n{number}")
        (ticket,) = places.hand_out(float(number))
        places.leave(ticket, number + 0.5)
    assert len(places._use._used) <= 10
    assert len(places._use._used_by_founder) <= 10
    assert not places._waiting
    assert not places._held


def test_a_node_that_invents_owners_has_no_more_turns_than_another_one():
    places = FairPlaces(1)
    for number in range(400):
        places.ask(f"invented{number}", founder="n1")
    served = []
    for now in range(20):
        if now == 10:
            places.ask("victim", founder="n2")
        (ticket,) = places.hand_out(2.0 * now)
        served.append(ticket.owner)
        places.leave(ticket, 2.0 * now + 2.0)
    assert served[10] == "victim"


def test_one_owner_that_uses_much_delays_no_other_owner_of_its_node_for_long():
    places = FairPlaces(1)
    for _ in range(50):
        places.ask("greedy", founder="n1")
        places.ask("elsewhere", founder="n2")
    now = 0.0
    for _ in range(40):
        (ticket,) = places.hand_out(now)
        now += 2.0
        places.leave(ticket, now)
    places.ask("victim", founder="n1")
    assert owners(places.hand_out(now)) == ["victim"]


@examples(100)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.booleans()), max_size=60))
def test_places_are_bounded_and_given_back_and_never_idle_while_a_new_owner_waits(steps):
    places, out, waiting = FairPlaces(3), [], set()
    for now, (owner, slow, gives_back) in enumerate(steps):
        waiting.add(places.ask(f"o{owner}", leaves_last=slow))
        given_now = places.hand_out(float(now))
        out += given_now
        waiting -= set(given_now)
        assert len(out) <= 3
        holders = {ticket.owner for ticket in out}
        good = [each for each in waiting if not each.leaves_last and each.owner not in holders]
        assert len(out) == 3 or not good
        if gives_back and out:
            places.leave(out.pop(0), now + 0.5)


def of(owner: str, count: int, urgency: int = CALM) -> list[Contender]:
    return [Contender(owner, urgency, 0.0, f"{owner}-{number}") for number in range(count)]


def names(candidates: list[Contender], limit: int) -> list[str]:
    return [each.name for each in rank_fairly(candidates)[:limit]]


def test_a_flood_of_healthy_jobs_hides_no_other_owners_job():
    flood = of("aaa", 511) + of("aab", 511)
    assert {"victim-0", "victim-1"} <= set(names(flood + of("victim", 2), 1000))


@pytest.mark.parametrize("urgency", [OPEN_INCIDENT, IN_TROUBLE])
@pytest.mark.parametrize("mine", [OPEN_INCIDENT, IN_TROUBLE, CALM])
def test_a_flood_of_jobs_in_trouble_hides_no_other_owners_job(urgency, mine):
    flood = of("aaa", 511, urgency) + of("aab", 511, urgency)
    assert {"victim-0", "victim-1"} <= set(names(flood + of("victim", 2, mine), 1000))


def test_jobs_in_trouble_come_before_all_healthy_ones():
    calm = [each for owner in range(500) for each in of(f"calm-{owner}", 4)]
    troubled = of("victim", ALWAYS_FIRST, IN_TROUBLE)
    assert set(names(calm + troubled, ALWAYS_FIRST)) == {each.name for each in troubled}


def test_of_one_owner_the_oldest_incident_comes_first_and_ended_jobs_last():
    jobs = [
        Contender("a", ENDED, 0.0, "ended"),
        Contender("a", CALM, 0.0, "calm"),
        Contender("a", OPEN_INCIDENT, 9.0, "new"),
        Contender("a", OPEN_INCIDENT, 1.0, "old"),
        Contender("a", IN_TROUBLE, 0.0, "suspect"),
    ]
    assert names(jobs, 9) == ["old", "new", "suspect", "calm", "ended"]


@pytest.mark.parametrize("urgencies", [(OPEN_INCIDENT, IN_TROUBLE), (CALM, ENDED)])
@given(data=st.data(), limit=st.integers(1, 40))
@examples(200)
def test_no_owner_lacks_a_place_while_another_has_more_than_its_share(urgencies, data, limit):
    drawn = st.tuples(st.sampled_from("abcd"), st.sampled_from(urgencies), st.floats(0, 9))
    found = data.draw(st.lists(drawn, max_size=60))
    candidates = [Contender(*each, f"j{number}") for number, each in enumerate(found)]
    ranked = rank_fairly(candidates)
    assert sorted(ranked) == sorted(candidates)
    assert rank_fairly(candidates[::-1]) == ranked
    counts = Counter(each.owner for each in ranked[:limit])
    for hidden in ranked[limit:]:
        assert counts[hidden.owner] >= max(counts.values()) - 1


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
