"""The page by value: what goes in comes out, and nothing that is no page gets through."""

from __future__ import annotations

import dataclasses
import os
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watchtower_heartbeat import layout
from watchtower_heartbeat.page import PageError, PageReader, PageView, TornPage, decode, read_page
from watchtower_heartbeat.writer import PageWriter, blank_image, pad_text

words = st.integers(-(2**63), 2**63 - 1)
plain_texts = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")))


def a_page(step: int = -1, beat_ns: int = 0, **cold: int | str) -> bytes:
    image = blank_image()
    writer = PageWriter(image)
    writer.write(**cold)
    writer.hot[2] = step
    writer.hot[1] = beat_ns
    writer.hot[0] = step
    return bytes(image)


def with_word(page: bytes, offset: int, value: int) -> bytes:
    return page[:offset] + struct.pack("=q", value) + page[offset + 8 :]


def with_bytes(page: bytes, offset: int, value: bytes) -> bytes:
    return page[:offset] + value + page[offset + len(value) :]


def test_a_blank_page_knows_nothing_and_has_not_beaten() -> None:
    view = decode(bytes(blank_image()))
    assert (view.step, view.beat_ns, view.rank, view.world_size) == (-1, 0, -1, -1)
    assert (view.local_rank, view.pid, view.start_time_ticks, view.exit_code) == (-1, -1, -1, -1)
    assert (view.nonfinite_losses, view.first_nonfinite_step, view.last_nonfinite_step) == (
        0,
        -1,
        -1,
    )
    assert (view.job, view.phase, view.record_socket, view.ended) == ("", "", "", "none")
    assert not view.torn


@given(step=words, beat_ns=words)
def test_any_step_and_time_come_back(step: int, beat_ns: int) -> None:
    view = decode(a_page(step, beat_ns))
    assert (view.step, view.beat_ns) == (step, beat_ns)


@given(st.fixed_dictionaries({name: words for name in layout.COLD_WORDS if name != "ended"}))
def test_any_cold_words_come_back(fields: dict[str, int]) -> None:
    view = dataclasses.asdict(decode(a_page(**fields)))
    assert {name: view[name] for name in fields} == fields


@given(st.fixed_dictionaries({name: plain_texts for name in layout.COLD_TEXTS}))
def test_any_printable_texts_come_back_up_to_their_bound(fields: dict[str, Any]) -> None:
    view = dataclasses.asdict(decode(a_page(**fields)))
    for name, text in fields.items():
        size = layout.COLD_TEXTS[name][1]
        assert text.startswith(view[name])
        # Either all of it, or cut where the next character did not fit.
        assert view[name] == text or len(view[name].encode()) > size - 5


@given(st.text(st.characters()), st.integers(2, 600))
def test_a_padded_text_has_its_size_ends_in_nul_and_is_valid_utf8(text: str, size: int) -> None:
    raw = pad_text(text, size)
    assert len(raw) == size
    assert raw[-1:] == b"\0"
    raw.decode("utf-8")


def test_writing_one_field_leaves_the_others_alone() -> None:
    image = blank_image()
    writer = PageWriter(image)
    writer.write(rank=3, job="llama")
    writer.write(phase="eval")
    view = decode(bytes(image))
    assert (view.rank, view.job, view.phase) == (3, "llama", "eval")


def test_a_shorter_text_replaces_all_of_a_longer_one() -> None:
    image = blank_image()
    writer = PageWriter(image)
    writer.write(phase="checkpoint")
    writer.write(phase="eval")
    assert decode(bytes(image)).phase == "eval"


def test_a_value_that_does_not_fit_is_refused_and_the_page_stays_whole() -> None:
    image = blank_image()
    with pytest.raises(ValueError, match="format"):
        PageWriter(image).write(rank=2**63)
    assert decode(bytes(image)).rank == -1


@given(st.binary(max_size=2 * layout.PAGE_SIZE))
def test_random_bytes_are_refused_and_never_crash(data: bytes) -> None:
    with pytest.raises(PageError):
        decode(data)


@given(st.binary(min_size=layout.PAGE_SIZE - 24, max_size=layout.PAGE_SIZE - 24))
def test_random_bytes_behind_a_good_head_give_a_view_of_bounded_clean_text(tail: bytes) -> None:
    view = decode(bytes(blank_image())[:24] + tail, allow_torn=True)
    for name, (_, size) in layout.COLD_TEXTS.items():
        text = getattr(view, name)
        assert len(text) <= size
        lines = text.split("\n") if name in ("exception_message", "declared") else [text]
        assert all(line.isprintable() for line in lines)


@given(st.integers(0, layout.PAGE_SIZE - 1))
def test_a_page_cut_anywhere_is_refused_as_short_and_not_as_torn(size: int) -> None:
    with pytest.raises(PageError, match="bytes, a page has 4096") as caught:
        decode(a_page(step=7)[:size])
    assert not isinstance(caught.value, TornPage)


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (with_bytes(a_page(), layout.MAGIC_AT, b"XXXXXXXX"), "magic"),
        (with_word(a_page(), layout.VERSION_AT, layout.VERSION + 1), "layout version 2"),
        (with_word(a_page(), layout.SIZE_AT, 8192), "8192 bytes"),
    ],
)
def test_a_wrong_head_is_refused_with_its_reason(page: bytes, reason: str) -> None:
    with pytest.raises(PageError, match=reason) as caught:
        decode(page)
    assert reason in caught.value.reason


def test_a_beat_under_way_is_torn_and_shows_the_last_whole_step_when_allowed() -> None:
    page = with_word(a_page(step=7), layout.STEP_BEGUN_AT, 8)
    with pytest.raises(TornPage):
        decode(page)
    view = decode(page, allow_torn=True)
    assert view.step == 7
    assert view.torn


def test_a_cold_write_under_way_is_torn() -> None:
    page = with_word(a_page(rank=3), layout.COLD_BEGUN_AT, 99)
    with pytest.raises(TornPage):
        decode(page)
    assert decode(page, allow_torn=True).torn


@pytest.mark.parametrize(
    ("number", "word"),
    [(0, "none"), (1, "finished"), (2, "exception"), (3, "exit"), (77, "other"), (-1, "other")],
)
def test_the_way_it_ended_is_a_word_also_when_a_newer_writer_knows_more(
    number: int, word: str
) -> None:
    assert decode(a_page(ended=number)).ended == word


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"\x1b[31mred\x1b[0m", "[31mred [0m"),
        (b"two\n \r\nlines\x0bhere", "two\nlines here"),
        (b"not \xff utf-8", "not \N{REPLACEMENT CHARACTER} utf-8"),
        ("right-to-left \N{RIGHT-TO-LEFT OVERRIDE}override".encode(), "right-to-left  override"),
        (b"cut\0here", "cut"),
    ],
)
def test_text_of_a_foreign_process_is_cleaned(raw: bytes, shown: str) -> None:
    offset, _ = layout.COLD_TEXTS["exception_message"]
    assert decode(with_bytes(a_page(), offset, raw)).exception_message == shown


def test_text_without_its_closing_nul_ends_at_its_bound() -> None:
    offset, size = layout.COLD_TEXTS["phase"]
    assert decode(with_bytes(a_page(), offset, b"x" * size)).phase == "x" * size


def test_the_view_has_a_field_for_everything_in_the_layout() -> None:
    fields = {field.name for field in dataclasses.fields(PageView)}
    transfers = {"transfers", "transfers_left_out"}
    assert fields == {*layout.COLD_WORDS, *layout.COLD_TEXTS, *transfers, "step", "beat_ns", "torn"}


def with_row(page: bytes, at: int, *words: int) -> bytes:
    size = 8 * len(layout.TRANSFER_WORDS)
    return with_bytes(page, layout.TRANSFERS_AT + at * size, struct.pack("=6q", *words))


def test_a_page_without_transfers_and_groups_has_none() -> None:
    view = decode(a_page())
    assert (view.transfers, view.transfers_left_out, view.groups_descriptor) == ((), 0, 0)


def test_rows_of_transfers_come_back_wherever_they_lie() -> None:
    page = with_row(a_page(), 0, 1, 1, 5, 4, 0, 0)
    page = with_row(page, layout.TRANSFER_ROWS - 1, -1, 0, 0, 0, 7, 7)
    view = decode(with_word(page, layout.TRANSFERS_LEFT_OUT_AT, 9))
    first, last = view.transfers
    assert dataclasses.astuple(first) == (0, True, 5, 4, 0, 0)
    assert dataclasses.astuple(last) == (layout.ANY_PEER, False, 0, 0, 7, 7)
    assert view.transfers_left_out == 9


def test_a_call_that_ended_while_the_row_was_read_is_over() -> None:
    (row,) = decode(with_row(a_page(), 0, 4, 0, 2, 3, 0, 0)).transfers
    assert (row.sends_begun, row.sends_done) == (3, 3)


@pytest.mark.parametrize(
    "nonsense", [(-2, 0, 0, 0, 0, 0), (4, 2, 0, 0, 0, 0), (4, 0, 0, 0, -1, 0), (0, 1, 5, 5, 0, 0)]
)
def test_a_row_that_no_writer_writes_is_left_out(nonsense: tuple[int, ...]) -> None:
    page = with_row(with_row(a_page(), 0, *nonsense), 1, 8, 1, 1, 1, 0, 0)
    assert [row.peer for row in decode(page).transfers] == [7]


def test_read_page_gives_a_marked_view_of_a_writer_that_stopped_half_way(tmp_path) -> None:
    path = tmp_path / "page"
    path.write_bytes(with_word(a_page(step=7), layout.STEP_BEGUN_AT, 8))
    with path.open("rb") as file:
        view = read_page(file.fileno())
    assert (view.step, view.torn) == (7, True)


def test_read_page_says_why_there_is_nothing_to_read(tmp_path) -> None:
    path = tmp_path / "page"
    path.write_bytes(b"")
    with path.open("rb") as file, pytest.raises(PageError, match="0 bytes"):
        read_page(file.fileno())
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(PageError, match="cannot be read"):
            read_page(folder)
    finally:
        os.close(folder)


changes = st.one_of(
    st.tuples(st.sampled_from([layout.STEP_AT, layout.TIME_NS_AT, layout.STEP_BEGUN_AT]), words),
    st.tuples(st.sampled_from(sorted(layout.COLD_WORDS.values())), words),
    st.tuples(st.sampled_from([layout.COLD_DONE_AT, layout.COLD_BEGUN_AT]), st.integers(0, 2)),
    st.tuples(
        st.sampled_from([layout.MAGIC_AT, layout.TRANSFERS_AT, layout.TRANSFERS_AT + 8]), words
    ),
)


@given(st.lists(st.lists(changes, max_size=4), max_size=8))
def test_a_page_that_is_read_again_is_the_same_as_one_that_is_read_first(
    rounds: list[list[tuple[int, int]]],
) -> None:
    descriptor = os.memfd_create("page")
    try:
        os.pwrite(descriptor, a_page(1, 2, rank=3), 0)
        reader = PageReader(descriptor)
        reader.read()
        for each in rounds:
            for offset, value in each:
                os.pwrite(descriptor, struct.pack("=q", value), offset)
            assert outcome(reader.read) == outcome(lambda: read_page(descriptor))
    finally:
        os.close(descriptor)


def outcome(read: Callable[[], PageView]) -> PageView | str:
    try:
        return read()
    except PageError as error:
        return error.reason
