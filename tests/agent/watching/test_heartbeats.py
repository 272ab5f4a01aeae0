"""Beats as ages, counted between reports, from a page that the test writes."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watchtower_heartbeat.layout import (
    ENDED_EXIT,
    ENDED_FINISHED,
    STEP_AT,
    STEP_BEGUN_AT,
    TIME_NS_AT,
)
from watchtower_heartbeat.writer import PageWriter, blank_image

from agent.ranks.pages import PageFile, is_page_link
from agent.watching.rank import Heartbeat
from tests.properties import examples
from watchtower.wire.report import EXIT_PHASE

S = 1_000_000_000


class Page:
    """A page in memory that the test writes at will."""

    def __init__(self) -> None:
        self.image = blank_image()
        self.descriptor = os.memfd_create("test")
        self.flush()

    def flush(self) -> None:
        os.pwrite(self.descriptor, bytes(self.image), 0)

    def beat(self, step: int, at_ns: int) -> None:
        for offset, value in ((STEP_AT, step), (STEP_BEGUN_AT, step), (TIME_NS_AT, at_ns)):
            self.image[offset : offset + 8] = value.to_bytes(8, "little", signed=True)
        self.flush()

    def write(self, **fields: int | str) -> None:
        PageWriter(self.image).write(**fields)
        self.flush()

    def heartbeat(self, started_ns: int = 0) -> Heartbeat:
        return Heartbeat(PageFile(os.dup(self.descriptor), "7"), started_ns)


@pytest.fixture
def page() -> Page:
    return Page()


def test_an_age_is_counted_from_the_beat(page: Page) -> None:
    page.beat(5, 100 * S)
    beat = page.heartbeat().beat(103 * S)
    assert beat is not None
    assert (beat.step, beat.age_s, beat.advanced) == (5, 3.0, 0)


def test_before_the_first_beat_the_age_is_the_pages(page: Page) -> None:
    beat = page.heartbeat().beat(10**19)
    assert beat is not None
    assert beat.step == -1
    assert beat.age_s > 0


def test_steps_and_their_mean_time_are_counted_between_reports(page: Page) -> None:
    page.beat(5, 100 * S)
    heartbeat = page.heartbeat()
    heartbeat.beat(100 * S)
    page.beat(9, 102 * S)
    heartbeat.read()
    beat = heartbeat.beat(103 * S)
    assert beat is not None
    assert (beat.advanced, beat.interval_s, beat.age_s) == (4, 0.5, 1.0)
    again = heartbeat.beat(104 * S)
    assert again is not None
    assert (again.advanced, again.interval_s, again.age_s) == (0, 0.0, 2.0)


def test_a_resumed_job_did_not_make_a_thousand_steps_at_once(page: Page) -> None:
    heartbeat = page.heartbeat()
    page.beat(1000, 100 * S)
    heartbeat.read()
    beat = heartbeat.beat(100 * S)
    assert beat is not None
    assert (beat.advanced, beat.interval_s) == (1, 0.0)


def test_a_loop_that_counts_from_zero_again_still_advances(page: Page) -> None:
    page.beat(99, 100 * S)
    heartbeat = page.heartbeat()
    page.beat(0, 101 * S)
    heartbeat.read()
    beat = heartbeat.beat(101 * S)
    assert beat is not None
    assert (beat.step, beat.advanced, beat.interval_s) == (0, 1, 1.0)


@pytest.mark.parametrize("forged_ns", [2**63 - 1, 10_000 * S])
def test_a_step_took_no_longer_than_what_passed_since_the_beat_before(
    page: Page, forged_ns: int
) -> None:
    page.beat(5, 100 * S)
    heartbeat = page.heartbeat()
    heartbeat.beat(100 * S)
    page.beat(6, forged_ns)
    heartbeat.read()
    beat = heartbeat.beat(103 * S)
    assert beat is not None
    assert (beat.advanced, beat.interval_s, beat.age_s) == (1, 3.0, 0.0)
    again = heartbeat.beat(104 * S)
    assert again is not None
    assert (again.advanced, again.interval_s) == (0, 0.0)


@pytest.mark.parametrize("forged_ns", [-(2**63), -1, 1, 50 * S])
def test_nothing_on_a_page_is_older_than_its_process(page: Page, forged_ns: int) -> None:
    page.beat(5, forged_ns)
    page.write(phase="checkpoint", phase_since_ns=forged_ns)
    heartbeat = page.heartbeat(started_ns=90 * S)
    beat = heartbeat.beat(100 * S)
    assert beat is not None
    assert (beat.age_s, beat.phase_age_s) == (10.0, 10.0)
    page.beat(6, 101 * S)
    heartbeat.read()
    beat = heartbeat.beat(101 * S)
    assert beat is not None
    assert beat.interval_s == 11.0


@given(words=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=4, max_size=4))
@examples(100)
def test_any_times_on_a_page_make_a_beat_that_the_wire_takes(words: list[int]) -> None:
    page, (step, before, after, phase) = Page(), words
    page.beat(step, before)
    page.write(phase="checkpoint", phase_since_ns=phase)
    heartbeat = page.heartbeat(started_ns=90 * S)
    heartbeat.beat(100 * S)
    page.beat(min(step + 1, 2**63 - 1), after)
    heartbeat.read()
    beat = heartbeat.beat(110 * S)
    assert beat is not None
    assert max(beat.age_s if beat.step >= 0 else 0, beat.phase_age_s, beat.interval_s) <= 20.0


def test_a_phase_is_told_with_its_age(page: Page) -> None:
    page.beat(1, 100 * S)
    page.write(phase="checkpoint", phase_since_ns=101 * S)
    beat = page.heartbeat().beat(105 * S)
    assert beat is not None
    assert (beat.phase, beat.phase_age_s) == ("checkpoint", 4.0)


@pytest.mark.parametrize("ended", [ENDED_FINISHED, ENDED_EXIT])
def test_a_process_that_outlives_its_program_is_in_phase_exit(page: Page, ended: int) -> None:
    page.beat(9, 100 * S)
    page.write(ended=ended, ended_ns=101 * S)
    heartbeat = page.heartbeat()
    beat = heartbeat.beat(105 * S)
    assert beat is not None
    assert (beat.step, beat.phase, beat.phase_age_s) == (9, EXIT_PHASE, 4.0)
    page.beat(10, 106 * S)  # `sys.exit` was caught: the program continued
    heartbeat.read()
    assert heartbeat.beat(107 * S).phase == ""  # type: ignore[union-attr]


def test_a_bad_loss_counts_while_it_is_the_last_one(page: Page) -> None:
    page.beat(4, 100 * S)
    page.write(nonfinite_losses=1, first_nonfinite_step=4, last_nonfinite_step=4)
    heartbeat = page.heartbeat()
    assert heartbeat.beat(101 * S).loss_is_bad  # type: ignore[union-attr]
    page.beat(6, 102 * S)
    heartbeat.read()
    assert not heartbeat.beat(103 * S).loss_is_bad  # type: ignore[union-attr]


def test_an_exception_that_nothing_caught_is_told_while_the_process_is_there(page: Page) -> None:
    page.beat(5, 100 * S)
    page.write(ended_ns=101 * S, exception_type="KeyError", exception_message="'label_7'")
    heartbeat = page.heartbeat()
    beat = heartbeat.beat(102 * S)
    assert beat is not None
    assert (beat.exception_type, beat.exception_text) == ("KeyError", "'label_7'")
    page.beat(6, 103 * S)  # it went on: somebody called the hook for an exception that was caught
    heartbeat.read()
    assert heartbeat.beat(104 * S).exception_type == ""  # type: ignore[union-attr]


def test_last_words_stay_when_the_page_cannot_be_read_any_more(page: Page) -> None:
    page.beat(5, 100 * S)
    heartbeat = page.heartbeat()
    os.ftruncate(page.descriptor, 0)
    heartbeat.read()
    assert heartbeat.problem
    assert heartbeat.beat(101 * S).step == 5  # type: ignore[union-attr]
    assert heartbeat.view_now() is None


def test_pages_are_known_by_their_links() -> None:
    assert is_page_link("/memfd:watchtower-heartbeat (deleted)")
    assert is_page_link("/run/beats/watchtower-heartbeat.gpu-1.77.0a1b2c3d")
    assert not is_page_link("/memfd:other (deleted)")
