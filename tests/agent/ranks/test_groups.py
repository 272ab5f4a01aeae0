"""How processes without ranks are numbered. By value."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agent.ranks.groups import (
    SETTLES_AFTER_S,
    Member,
    find_left_out,
    number_members,
    settles_at,
)
from tests.properties import examples

NOW = 1000.0


def member(pid: int, *place: int, group: str = "Trainer", joined_s: float = 60.0, **fields):
    return Member(pid=pid, group=group, order=(*place, pid), joined_at=NOW - joined_s, **fields)


def test_members_are_numbered_in_their_order() -> None:
    workers = [member(12, 0, 1), member(13, 0, 0), member(11, 1)]
    assert number_members(workers, NOW) == {13: 0, 12: 1, 11: 2}


def test_groups_are_numbered_apart() -> None:
    two = [member(1), member(2), member(3, group="Scorer"), member(4, group="Scorer")]
    assert number_members(two, NOW) == {1: 0, 2: 1, 3: 0, 4: 1}


def test_a_group_waits_until_all_its_members_are_there() -> None:
    late = [member(1), member(2, joined_s=1.0)]
    assert number_members(late, NOW) == {}
    assert settles_at(late) == NOW - 1.0 + SETTLES_AFTER_S
    assert number_members(late, settles_at(late)) == {1: 0, 2: 1}


def test_one_alone_is_not_numbered() -> None:
    assert number_members([member(1)], NOW) == {}


def test_a_group_in_which_one_has_a_rank_is_not_numbered() -> None:
    assert number_members([member(1), member(2, has_rank=True)], NOW) == {}
    assert number_members([member(1, number=0), member(2, number=1, has_rank=True)], NOW) == {}


def test_those_without_a_rank_are_left_out_where_others_have_one() -> None:
    mixed = [member(1), member(2, has_rank=True), member(3, group="Scorer")]
    assert find_left_out(mixed) == {1}


def test_a_member_keeps_its_number_and_a_new_one_takes_that_of_an_ended_one() -> None:
    first = [member(1, number=0), member(3, number=2)]
    assert number_members(first, NOW) == {1: 0, 3: 2}
    later = [*first, member(2), member(0)]
    assert number_members(later, NOW) == {1: 0, 3: 2, 0: 1, 2: 3}
    assert number_members([member(3, number=2)], NOW) == {3: 2}


@examples(200)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_no_two_members_of_a_group_have_one_number(made: list[tuple[int, bool]]) -> None:
    before = [
        member(pid, group=str(group), number=pid if known else None)
        for pid, (group, known) in enumerate(made)
    ]
    numbers = number_members(before, NOW)
    after = [replace(each, number=numbers.get(each.pid)) for each in before]
    assert number_members(after, NOW) == numbers
    for group in {each.group for each in before}:
        own = [numbers[each.pid] for each in before if each.group == group and each.pid in numbers]
        assert len(set(own)) == len(own)
