"""How far ranks are from the end of the waiting: chains, cycles, and all together."""

from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from watchtower.views.summary.distances import measure_waits


def test_a_chain_counts_its_links():
    assert measure_waits([([0], [1]), ([1], [2])]) == ({0: 2, 1: 1, 2: 0}, {})


def test_the_longest_way_counts():
    distance, _ = measure_waits([([0], [1, 2]), ([1], [2])])
    assert distance == {0: 2, 1: 1, 2: 0}


def test_a_call_that_waits_for_none_is_the_end():
    assert measure_waits([([0, 1], [])]) == ({0: 0, 1: 0}, {})


def test_the_ranks_of_a_cycle_are_equally_far_away():
    distance, cycle = measure_waits([([0], [1]), ([1], [2]), ([2], [1]), ([2], [3])])
    assert distance == {0: 2, 1: 1, 2: 1, 3: 0}
    assert cycle.keys() == {1, 2}
    assert cycle[1] == cycle[2]


members = st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True)


@examples(300)
@given(st.lists(st.tuples(members, members), max_size=8))
def test_every_wait_leads_nearer_to_the_end_or_is_inside_a_cycle(waits):
    distance, cycle = measure_waits(waits)
    assert distance.keys() == {rank for pair in waits for ranks in pair for rank in ranks}
    for waiting, awaited in waits:
        for rank in waiting:
            for other in awaited:
                inside = rank == other or (rank in cycle and cycle.get(rank) == cycle.get(other))
                assert inside or distance[rank] > distance[other]
