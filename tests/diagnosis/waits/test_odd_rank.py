"""Ranks of a cycle that may be the odd one: those that every cycle of an end goes through."""

from hypothesis import given
from hypothesis import strategies as st

from watchtower.diagnosis.waits.graph import End, EndKind, PointKind, WaitPoint
from watchtower.diagnosis.waits.odd_rank import find_cycle_breakers


def a_cycle(*waits: tuple[tuple[int, ...], tuple[int, ...]]) -> End:
    points = tuple(
        WaitPoint(PointKind.COLLECTIVE, number, "all_reduce", waiting, missing, ())
        for number, (waiting, missing) in enumerate(waits)
    )
    ranks = sorted({rank for waiting, missing in waits for rank in (*waiting, *missing)})
    return End(EndKind.CYCLE, tuple(ranks), points, 0, True)


def test_one_against_three_is_the_one():
    assert find_cycle_breakers(a_cycle(((0, 2, 3), (1,)), ((1,), (0, 2, 3)))) == (1,)


def test_of_two_both_are():
    assert find_cycle_breakers(a_cycle(((0,), (1,)), ((1,), (0,)))) == (0, 1)


def test_of_two_even_sides_no_rank_is():
    assert find_cycle_breakers(a_cycle(((0, 1), (2, 3)), ((2, 3), (0, 1)))) == ()


def test_a_ring_goes_through_all_ranks():
    ring = a_cycle(*(((rank,), ((rank + 1) % 40,)) for rank in range(40)))
    assert find_cycle_breakers(ring) == tuple(range(40))


def test_a_way_around_a_rank_takes_it_out():
    # From 0 to 3 through 1 and 2, or through 1 alone.
    cycle = a_cycle(((0,), (1,)), ((1,), (2, 3)), ((2,), (3,)), ((3,), (0,)))
    assert find_cycle_breakers(cycle) == (0, 1, 3)


@given(
    st.integers(2, 7),
    st.lists(
        st.tuples(st.integers(0, 6), st.sets(st.integers(0, 6), min_size=1, max_size=3)),
        max_size=6,
    ),
)
def test_they_are_those_without_which_no_cycle_is_left(size: int, drawn):
    """A ring, so that each rank leads to each, and more waits across it."""
    ring = [(rank, ((rank + 1) % size,)) for rank in range(size)]
    chords = [(rank % size, tuple({other % size for other in more})) for rank, more in drawn]
    waits = [(rank, missing) for rank, missing in ring + chords if rank not in missing]

    def has_cycle(without: int) -> bool:
        left = set(range(size)) - {without}
        while True:
            stuck = {rank for rank, missing in waits if rank in left and left.intersection(missing)}
            if stuck == left:
                return bool(left)
            left = stuck

    expected = tuple(rank for rank in range(size) if not has_cycle(rank))
    assert (
        find_cycle_breakers(a_cycle(*(((rank,), missing) for rank, missing in waits))) == expected
    )
