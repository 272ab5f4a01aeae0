from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.builders import a_stack, frames
from tests.diagnosis.strategies import STACKS
from watchtower.evidence.frames import (
    describe_frames,
    group_stacks,
    merge_stacks,
)

stacks = st.dictionaries(
    st.integers(0, 60), st.sampled_from([a_stack(text) for text in STACKS]), max_size=30
)


def walk_tree(node, depth=0):
    """Return each node below the root with its depth, callers before what they call."""
    for child in node.children:
        yield depth, child
        yield from walk_tree(child, depth + 1)


@given(stacks, st.randoms(use_true_random=False))
def test_the_order_of_merging_does_not_matter(some, order):
    shuffled = list(some.items())
    order.shuffle(shuffled)
    assert merge_stacks(dict(shuffled)) == merge_stacks(some)
    assert group_stacks(dict(shuffled)) == group_stacks(some)


@given(stacks)
def test_no_rank_is_lost_or_doubled(some):
    tree = merge_stacks(some)
    ends = [rank for _, node in [(0, tree), *walk_tree(tree)] for rank in node.ending]
    assert sorted(ends) == sorted(some)
    assert tree.ranks == frozenset(some)
    members = [rank for item in group_stacks(some) for rank in item.ranks]
    assert sorted(members) == sorted(some)


@given(stacks)
def test_children_share_out_the_ranks_that_go_on(some):
    tree = merge_stacks(some)
    for _, node in walk_tree(tree):
        counts = [len(child.ranks) for child in node.children]
        assert sum(counts) + len(node.ending) == len(node.ranks)
        assert counts == sorted(counts, reverse=True)


@given(stacks, st.integers(0, 5))
def test_ranks_with_equal_stacks_cost_no_further_nodes(some, times):
    again = {rank + 100 * turn: stack for rank, stack in some.items() for turn in range(times + 1)}
    assert len(list(walk_tree(merge_stacks(again)))) == len(list(walk_tree(merge_stacks(some))))


def test_callers_come_before_what_they_call():
    tree = merge_stacks({0: a_stack("b x.py:2 < a x.py:1"), 1: a_stack("a x.py:1")})
    walked = [(depth, node.frame.function, sorted(node.ranks)) for depth, node in walk_tree(tree)]
    assert walked == [(0, "a", [0, 1]), (1, "b", [0])]


def test_a_stack_is_one_line_and_long_ones_are_cut():
    assert describe_frames(frames("A.b x.py:2 < a /y/z.py:1")) == "b x.py:2 < a z.py:1"
    assert describe_frames(frames("c x.py:3 < b x.py:2 < a x.py:1"), limit=1) == "c x.py:3 < …"
