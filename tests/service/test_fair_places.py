"""Places shared by owners: whoever has used least is next, and no owner takes the last one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from watchtower.service import fair_places as module
from watchtower.service.fair_places import HALF_LIFE_S, FairPlaces, Ticket, has_share


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
