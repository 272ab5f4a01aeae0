"""Members of a group are written short and read back; a log is named by all it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchtower.wire.collectives import (
    CollectiveRecord,
    format_members,
    make_group_log,
    name_group,
    parse_members,
)

LIMIT = 1000


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ((), ""),
        ((3,), "3"),
        ((0, 1, 2, 3), "0-3"),
        ((0, 5), "0,5"),
        ((0, 8, 16, 24), "0-24/8"),
        ((0, 1, 8, 9, 16, 17), "0-1,8-9,16-17"),
        ((0, 4, 8, 9, 10), "0-8/4,9-10"),
    ],
)
def test_members_are_written_short(members, text):
    assert format_members(members) == text
    assert parse_members(text, LIMIT) == members


@given(st.sets(st.integers(0, 300), max_size=60).map(sorted).map(tuple))
def test_members_come_back(members):
    assert parse_members(format_members(members), LIMIT) == members


@pytest.mark.parametrize("text", ["x", "0-", "3-1,2-2,1", "0-9999", "0-9/0", "1,1", "-3", "0-5/-1"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_members(text, LIMIT)


def test_huge_ranges_are_refused_before_they_are_made():
    with pytest.raises(ValueError, match="more than 1000 members"):
        parse_members("0-999999999", LIMIT)


def test_a_group_is_named_by_members_and_order():
    names = {name_group("0-3", 0), name_group("0-3", 1), name_group("0-2", 0)}
    assert len(names) == 3
    assert name_group("0-3", 0) == name_group("0-3", 0)


def test_a_log_is_named_by_all_it_says():
    def digest(**changes: object) -> str:
        values = {"group": "g", "called": 5, "entered": 5, "completed": 4, "records": ()}
        return make_group_log(**(values | changes)).digest

    record = CollectiveRecord(number=5, operation="all_reduce", signature="float32[2]")
    changes = [{"group": "h"}, {"called": 6}, {"entered": -1}, {"completed": 3}]
    digests = {digest(), *(digest(**change) for change in changes), digest(records=(record,))}
    assert len(digests) == 6
    assert digest(timeout_s=600.0) == digest(), "ranks with two timeouts share a log"
