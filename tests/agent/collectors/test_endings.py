"""How a rank ended: what the wait status and the heartbeat page give, by value."""

from __future__ import annotations

import pytest
from watchtower_heartbeat.layout import PAGE_SIZE
from watchtower_heartbeat.page import PageView, decode
from watchtower_heartbeat.writer import PageWriter, blank_image

from agent.collectors.endings import ExitStatus, decode_wait_status
from agent.watching.rank import make_ending
from watchtower.wire.report import EndingKind


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (0, EndingKind.EXIT, 0),
        (3 << 8, EndingKind.EXIT, 3),
        (9, EndingKind.SIGNAL, 9),
        (11 | 0x80, EndingKind.SIGNAL, 11),  # with a core dump
    ],
)
def test_a_wait_status_is_decoded(status: int, kind: EndingKind, code: int) -> None:
    assert decode_wait_status(status) == ExitStatus(kind=kind, code=code)


def a_page(**fields: int | str) -> PageView:
    image = bytearray(blank_image())
    assert len(image) == PAGE_SIZE
    PageWriter(image).write(**fields)
    return decode(bytes(image))


UNKNOWN = ExitStatus(kind=EndingKind.UNKNOWN)


def test_no_status_and_no_page_is_unknown_and_never_exit_0() -> None:
    assert make_ending(UNKNOWN, None, age_s=0).kind is EndingKind.UNKNOWN
    assert make_ending(UNKNOWN, None, age_s=0).code is None


def test_an_orderly_shutdown_on_the_page_does_not_say_which_code() -> None:
    ended = make_ending(UNKNOWN, a_page(ended=1, ended_ns=5), age_s=0)
    assert (ended.kind, ended.code) == (EndingKind.EXIT, None)


def test_the_kernel_knows_better_than_the_page() -> None:
    status = ExitStatus(kind=EndingKind.SIGNAL, code=15)
    page = a_page(ended=2, ended_ns=5, exception_type="E", exception_message="m")
    ended = make_ending(status, page, age_s=0)
    assert (ended.kind, ended.code, ended.exception_type) == (EndingKind.SIGNAL, 15, "E")


@pytest.mark.parametrize(
    ("ended_ns", "before_s"), [(10**9, 4.0), (6 * 10**9, 0.0), (5 * 10**9, 0.0)]
)
def test_only_a_believable_time_of_an_exception_counts(ended_ns: int, before_s: float) -> None:
    page = a_page(ended=2, ended_ns=ended_ns, exception_type="E")
    ended = make_ending(UNKNOWN, page, age_s=1, ended_at_s=5.0)
    assert ended.raised_before_s == before_s


def test_the_lines_of_a_message_become_one_line() -> None:
    page = a_page(ended=2, ended_ns=5, exception_type="E", exception_message="a\n\n b\nc")
    assert make_ending(UNKNOWN, page, age_s=0).exception_text == "a | b | c"
