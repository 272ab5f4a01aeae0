"""The list of process groups and the rows of transfers, by value, without torch."""

from __future__ import annotations

import os
import struct
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watchtower_heartbeat import groups, layout
from watchtower_heartbeat.page import decode
from watchtower_heartbeat.transfers import RECEIVES, SENDS, Rows
from watchtower_heartbeat.writer import PageWriter, blank_image

from watchtower.wire import collectives


@pytest.fixture
def listed():
    group_list = groups.GroupList()
    yield group_list
    group_list.close()


def text_of(group_list: groups.GroupList) -> str:
    """Read as an agent reads: as much of it as the length says."""
    data = os.pread(group_list.descriptor, layout.GROUPS_MAX_SIZE, 0)
    assert data.startswith(layout.GROUPS_MAGIC + struct.pack("=q", layout.GROUPS_VERSION))
    (length,) = struct.unpack_from("=q", data, layout.GROUPS_LENGTH_AT)
    return data[layout.GROUPS_TEXT_AT : layout.GROUPS_TEXT_AT + length].decode()


def test_groups_are_listed_in_the_order_they_were_made(listed) -> None:
    assert text_of(listed) == ""
    listed.add("0", "default_pg", range(4))
    listed.add("1", "tp", [3, 1])
    listed.add("2", "tp", [1, 3])
    assert text_of(listed) == "0\tdefault_pg\t0-3\n1\ttp\t1,3\n2\ttp\t1,3\n"


def test_no_name_can_begin_a_field_or_a_line_of_its_own(listed) -> None:
    listed.add("a\tb\nc", "x" * 9999, [0])
    assert text_of(listed) == f"a b c\t{'x' * groups.MAX_NAME}\t0\n"


def test_a_descriptor_that_has_become_another_file_is_left_alone(tmp_path) -> None:
    """A program may close all descriptors it finds; what it opens then has their numbers."""
    listed = groups.GroupList()
    with (tmp_path / "checkpoint").open("w+b") as theirs:
        os.dup2(theirs.fileno(), listed.descriptor)
        listed.add("0", "default_pg", range(4))
        listed.close()
        assert theirs.read() == b""
    os.close(listed.descriptor)


def test_a_list_that_is_full_stays_as_it_is_so_that_the_order_is_right(listed) -> None:
    listed.add("0", "", [0])
    listed.add("1", "", (rank * rank for rank in range(120_000)))
    listed.add("2", "", [0])
    assert text_of(listed) == "0\t\t0\n"
    assert os.fstat(listed.descriptor).st_size <= layout.GROUPS_MAX_SIZE


@given(st.sets(st.integers(0, 200), min_size=1))
def test_members_are_written_as_the_wire_writes_them(members: set[int]) -> None:
    assert groups.format_members(members) == collectives.format_members(tuple(sorted(members)))


@given(st.integers(0, 99), st.integers(1, 9), st.integers(1, 99))
def test_so_are_strides(first: int, stride: int, size: int) -> None:
    members = range(first, first + stride * size, stride)
    assert groups.format_members(members) == collectives.format_members(tuple(members))


class Group:
    """The value that torch's dict has for a key, as far as it is checked."""

    def __init__(self, name: str) -> None:
        self.group_name, self.group_desc = name, f"about {name}"

    def rank(self) -> int:
        return 0


def test_groups_are_told_of_once_and_markers_of_foreign_groups_never() -> None:
    module, told = ModuleType("c10d"), []
    there, marker = Group("0"), object()
    module._pg_group_ranks = {there: {0: 0, 1: 1}}  # type: ignore[attr-defined]
    assert groups.watch(module, lambda *group: told.append(group))
    ranks = module._pg_group_ranks  # type: ignore[attr-defined]
    ranks[marker] = {5: 0}
    made = Group("1")
    ranks[made] = {1: 0}
    ranks[made] = {1: 0}
    assert told == [("0", "about 0", [0, 1], 0), ("1", "about 1", [1], 0)]
    assert ranks == {there: {0: 0, 1: 1}, marker: {5: 0}, made: {1: 0}}


def test_a_torch_without_that_dict_has_no_list() -> None:
    assert not groups.watch(ModuleType("c10d"), print)


@pytest.fixture
def page() -> bytearray:
    return blank_image()


def rows_of(page: bytearray) -> Rows:
    return Rows(PageWriter(page).transfers)


def test_calls_are_counted_by_peer_and_by_who_opened(page) -> None:
    rows = rows_of(page)
    rows.end(rows.begin(0, SENDS))
    rows.begin(0, RECEIVES)
    rows.end(rows.begin(layout.ANY_PEER, RECEIVES))
    with_0, with_any = decode(bytes(page)).transfers
    assert (with_0.peer, with_0.opened_by_send) == (0, True)
    assert (with_0.sends_begun, with_0.sends_done) == (1, 1)
    assert (with_0.receives_begun, with_0.receives_done) == (1, 0)
    assert (with_any.peer, with_any.opened_by_send, with_any.receives_done) == (-1, False, 1)


def test_calls_with_more_peers_than_rows_are_counted_as_left_out(page) -> None:
    rows = rows_of(page)
    places = [rows.begin(peer, SENDS) for peer in range(layout.TRANSFER_ROWS + 3)]
    assert places[-3:] == [-1, -1, -1]
    view = decode(bytes(page))
    assert [row.peer for row in view.transfers] == list(range(layout.TRANSFER_ROWS))
    assert view.transfers_left_out == 3
