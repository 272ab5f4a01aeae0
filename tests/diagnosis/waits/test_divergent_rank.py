"""Ranks of a cycle that call two groups in two orders, by their call counts."""

from tests.diagnosis.builders import ranks_in
from tests.diagnosis.recording import a_recorded_case, calls
from watchtower.diagnosis.waits.collective_logs import read_collective_logs
from watchtower.diagnosis.waits.divergent_rank import MAX_CANDIDATES, has_many_orders
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
