"""Whatever moment a reader hits, it sees one state or knows that it is torn.

The real writer runs under an opcode tracer that keeps the page after every store. A reader that
copies front to back may then meet any of those pages at any point, as long as it never goes back
in time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from watchtower_heartbeat import beating, layout
from watchtower_heartbeat.own_page import NO_PAGE
from watchtower_heartbeat.page import PageView, TornPage, decode
from watchtower_heartbeat.writer import PageWriter, blank_image

from tests.properties import examples


def pages_during(image: bytearray, work: Callable[[], None]) -> list[bytes]:
    """Every distinct state of the page while `work` runs, in order."""
    states = [bytes(image)]

    def watch(frame: FrameType, event: str, argument: object) -> Any:
        frame.f_trace_opcodes = True
        if bytes(image) != states[-1]:
            states.append(bytes(image))
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        work()
    finally:
        sys.settrace(before)
    return [*states, bytes(image)] if bytes(image) != states[-1] else states


def beat_four_times() -> None:
    for step in range(4):
        beating.beat(step)


@pytest.fixture(scope="module")
def beats() -> Iterator[list[bytes]]:
    image = blank_image()
    beating._bind(PageWriter(image).hot)
    try:
        yield pages_during(image, beat_four_times)
    finally:
        beating._bind(NO_PAGE)


@pytest.fixture(scope="module")
def cold_writes() -> list[bytes]:
    image = blank_image()
    writer = PageWriter(image)
    writer.write(rank=1, job="one", phase="one", exception_message="one", record_socket="one")
    return pages_during(
        image,
        lambda: writer.write(
            rank=2, job="two", phase="two", exception_message="two", record_socket="two"
        ),
    )


def a_copy(data: st.DataObject, pages: list[bytes]) -> bytes:
    """A page copied front to back, in pieces, each piece no older than the one before it."""
    cuts = sorted(data.draw(st.lists(st.integers(0, layout.PAGE_SIZE // 8), max_size=6)))
    edges = [0, *(8 * cut for cut in cuts), layout.PAGE_SIZE]
    moments = st.integers(0, len(pages) - 1)
    met = sorted(data.draw(st.lists(moments, min_size=len(edges), max_size=len(edges))))
    return b"".join(
        pages[moment][start:end] for moment, start, end in zip(met, edges, edges[1:], strict=False)
    )


def a_copy_of_words(data: st.DataObject, pages: list[bytes], offsets: range) -> bytes:
    """The same, each of a few words met at its own moment, so that every mixture comes up."""
    moments = st.integers(0, len(pages) - 1)
    met = sorted(data.draw(st.lists(moments, min_size=len(offsets), max_size=len(offsets))))
    copy = bytearray(pages[0])
    for offset, moment in zip(offsets, met, strict=True):
        copy[offset : offset + 8] = pages[moment][offset : offset + 8]
    return bytes(copy)


def whole_views(pages: list[bytes]) -> list[PageView]:
    views = [decode(page, allow_torn=True) for page in pages]
    return [view for view in views if not view.torn]


def test_a_beat_is_three_stores_and_the_step_is_the_last(beats: list[bytes]) -> None:
    # The first beat alone: step begun, time, step.
    steps = [decode(page, allow_torn=True) for page in beats[:4]]
    assert [view.torn for view in steps] == [False, True, True, False]
    assert [view.step for view in steps] == [-1, -1, -1, 0]
    assert steps[2].beat_ns == steps[3].beat_ns > steps[1].beat_ns == 0


@given(data=st.data())
@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_step_is_never_seen_with_the_time_of_another(
    data: st.DataObject, beats: list[bytes]
) -> None:
    hot_line = range(layout.STEP_AT, layout.STEP_BEGUN_AT + 8, 8)
    try:
        view = decode(a_copy_of_words(data, beats, hot_line))
    except TornPage:
        return
    pairs = {(whole.step, whole.beat_ns) for whole in whole_views(beats)}
    assert (view.step, view.beat_ns) in pairs


@given(data=st.data())
@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cold_fields_are_seen_all_old_or_all_new(
    data: st.DataObject, cold_writes: list[bytes]
) -> None:
    assert len(cold_writes) > 6
    try:
        view = decode(a_copy(data, cold_writes))
    except TornPage:
        return
    assert view in whole_views([cold_writes[0], cold_writes[-1]])


def test_a_write_that_failed_in_the_middle_is_healed_by_the_next() -> None:
    image = blank_image()
    writer = PageWriter(image)
    # What a signal handler leaves behind that raised between two stores.
    image[layout.COLD_BEGUN_AT] += 1
    with pytest.raises(TornPage):
        decode(bytes(image))
    writer.write(rank=4)
    assert decode(bytes(image)).rank == 4
