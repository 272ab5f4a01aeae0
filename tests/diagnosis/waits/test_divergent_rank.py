"""Ranks of a cycle that call two groups in two orders, by their call counts."""

from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.builders import ranks_in
from tests.diagnosis.recording import a_recorded_case, calls
from watchtower.diagnosis.waits.collective_logs import read_collective_logs
from watchtower.diagnosis.waits.divergent_rank import (
    MAX_CANDIDATES,
    Relation,
    are_comparable,
    find_agreed,
    find_break,
    has_many_orders,
)
from watchtower.diagnosis.waits.graph import End, EndKind, PointKind, WaitPoint

FIRST_A, FIRST_B, BEHIND = (4, 3), (3, 4), (3, 3)


def have_many_orders(*counts):
    """`counts`: how often each rank has called group a and group b."""
    ranks = tuple(range(len(counts)))
    made = {
        rank: {"a": calls("", before=a), "b": calls("", before=b)}
        for rank, (a, b) in zip(ranks, counts, strict=True)
    }
    case = a_recorded_case(ranks_in(len(ranks)), {"a": ranks, "b": ranks}, made)
    logs = read_collective_logs(case)
    assert logs is not None
    points = tuple(
        WaitPoint(PointKind.COLLECTIVE, 4, "all_reduce", ranks, (), (), group)
        for group in logs.groups.values()
    )
    return has_many_orders(logs, End(EndKind.CYCLE, ranks, points, 0, True), ranks)


def test_two_ranks_against_two_have_two_orders():
    assert have_many_orders(FIRST_A, FIRST_A, FIRST_B, FIRST_B)


def test_one_rank_against_all_others_is_one_order_and_one_odd_rank():
    assert not have_many_orders(FIRST_A, FIRST_B, FIRST_B, FIRST_B)


def test_an_odd_rank_after_those_that_are_compared_is_part_of_all_their_pairs():
    assert not have_many_orders(*[FIRST_B] * 2 * MAX_CANDIDATES, FIRST_A)


def test_counts_that_fit_together_show_no_orders():
    assert not have_many_orders(FIRST_A, FIRST_A, BEHIND, BEHIND)


def test_of_many_candidates_the_first_are_compared():
    """Each comparison of one costs as much as the cycle has ranks."""
    orders = [FIRST_A, FIRST_A, FIRST_B, FIRST_B]
    assert have_many_orders(*orders, *[BEHIND] * MAX_CANDIDATES)
    assert not have_many_orders(*[BEHIND] * MAX_CANDIDATES, *orders)


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
