import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchtower.writing.ranksets import format_ranks, name_ranks, parse_ranks

ranks = st.frozensets(st.integers(0, 5000), max_size=200)


@given(ranks)
def test_what_is_written_reads_back(some):
    assert parse_ranks(format_ranks(some)) == some


@given(ranks, ranks)
def test_joined_texts_read_as_the_union(some, others):
    assert parse_ranks(f"{format_ranks(some)},{format_ranks(others)}") == some | others


def test_runs_are_written_as_ranges():
    assert format_ranks([8, 0, 1, 2, 3, 8, 10, 11]) == "0-3,8,10-11"


def test_no_rank_is_an_empty_text():
    assert format_ranks([]) == ""
    assert parse_ranks("") == frozenset()


def test_nonsense_names_the_part_that_is_wrong():
    with pytest.raises(ValueError, match="'x-2' is not a rank"):
        parse_ranks("0-3,x-2")


def test_ranks_are_named():
    assert name_ranks([3]) == "rank 3"
    assert name_ranks([5, 3, 6]) == "ranks 3,5-6"
