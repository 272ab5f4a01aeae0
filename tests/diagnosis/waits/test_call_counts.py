"""Call counts of ranks of one program form a chain, and one call off breaks it."""

from hypothesis import given
from hypothesis import strategies as st

from watchtower.diagnosis.waits.divergent_rank import (
    Relation,
    are_comparable,
    find_agreed,
    find_break,
)

TP, DP, WORLD = ("tp", 4, ""), ("dp", 2, ""), ("w", 8, "")
PROGRAM = st.lists(st.sampled_from([TP, DP, WORLD]), min_size=1, max_size=30)


def counted(program, calls):
    return {role: program[:calls].count(role) for role in (TP, DP, WORLD)}


@given(PROGRAM, st.integers(0, 30), st.integers(0, 30))
def test_ranks_of_one_program_form_a_chain(program, one, other):
    own, theirs = counted(program, one), counted(program, other)
    assert are_comparable(own, theirs)
    assert find_break(own, theirs, Relation.UNKNOWN) is None
    behind, ahead = sorted((one, other))
    assert find_break(counted(program, behind), counted(program, ahead), Relation.BEHIND) is None
    assert find_break(own, own, Relation.SAME) is None


@given(PROGRAM, st.integers(1, 30), st.data())
def test_a_call_left_out_breaks_it_at_the_same_call(program, calls, data):
    calls = min(calls, len(program))
    left_out = data.draw(st.sampled_from(program[:calls]))
    theirs = counted(program, calls)
    own = {**theirs, left_out: theirs[left_out] - 1}
    assert find_break(own, theirs, Relation.SAME) == (left_out, -1)
    assert find_break(own, theirs, Relation.BEHIND) is None
    assert find_break(theirs, own, Relation.BEHIND) == (left_out, 1)


def test_elsewhere_only_a_count_against_the_trend_breaks_it():
    own, theirs = {TP: 5, DP: 3, WORLD: 2}, {TP: 7, DP: 2, WORLD: 3}
    assert not are_comparable(own, theirs)
    assert find_break(own, theirs, Relation.UNKNOWN) == (DP, 1)
    assert find_break(theirs, own, Relation.UNKNOWN) == (DP, -1)


def test_two_counts_against_two_show_two_orders_and_no_single_call():
    own, theirs = {TP: 5, DP: 3}, {TP: 3, DP: 5}
    assert not are_comparable(own, theirs)
    assert find_break(own, theirs, Relation.UNKNOWN) is None


def test_ranks_of_other_programs_are_not_compared():
    assert are_comparable({TP: 5, DP: 3}, {TP: 3, WORLD: 5})


def test_only_counts_that_all_share_are_usual():
    assert find_agreed([{TP: 5, DP: 3}, {TP: 5, DP: 4}, {TP: 5}]) == {TP: 5}
