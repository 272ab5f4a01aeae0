"""Processes on which a tool had to be ended are dumped less often, the others as before."""

from __future__ import annotations

from agent.dumpers.python_stacks import FIRST_PAUSE_S, LONGEST_PAUSE_S, MAX_KNOWN, ToolBackoff
from watchtower.wire.bounds import MAX_TEXT
from watchtower.wire.dumps import DumpFailure, FailureKind

HOSTILE, OTHER = (7, 100), (7, 101)
LATE = DumpFailure(kind=FailureKind.TIMEOUT, help_text="py-spy did not return")


def test_one_time_is_chance() -> None:
    backoff = ToolBackoff()
    backoff.note(HOSTILE, LATE, 0.0)
    assert backoff.refuse(HOSTILE, 0.0) is None
    assert backoff.times(HOSTILE) == 1


def test_the_pause_doubles_up_to_a_bound_and_ends() -> None:
    backoff, now, pauses = ToolBackoff(), 0.0, []
    backoff.note(HOSTILE, LATE, now)
    for _ in range(12):
        backoff.note(HOSTILE, LATE, now)
        began = now
        while backoff.refuse(HOSTILE, now) is not None:
            now += 1.0
        pauses.append(now - began)
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert max(pauses) == pauses[-1] == LONGEST_PAUSE_S


def test_the_failure_says_why_and_for_how_long() -> None:
    backoff = ToolBackoff()
    for _ in range(3):
        backoff.note(HOSTILE, LATE, 0.0)
    failure = backoff.refuse(HOSTILE, 1.0)
    assert failure is not None
    assert failure.kind is FailureKind.TIMEOUT
    assert "9 s" in failure.help_text
    assert "3 times" in failure.help_text
    assert LATE.help_text in failure.help_text


def test_a_long_help_text_stays_within_the_wire() -> None:
    backoff = ToolBackoff()
    for _ in range(2):
        backoff.note(HOSTILE, DumpFailure(kind=FailureKind.OTHER, help_text="x" * MAX_TEXT), 0.0)
    assert backoff.refuse(HOSTILE, 0.0) is not None


def test_a_dump_that_went_well_forgets_it() -> None:
    backoff = ToolBackoff()
    for _ in range(5):
        backoff.note(HOSTILE, LATE, 0.0)
    backoff.note(HOSTILE, None, 0.0)
    assert (backoff.refuse(HOSTILE, 0.0), backoff.times(HOSTILE)) == (None, 0)


def test_another_process_with_the_same_number_is_another_process() -> None:
    backoff = ToolBackoff()
    for _ in range(5):
        backoff.note(HOSTILE, LATE, 0.0)
    assert backoff.refuse(OTHER, 0.0) is None


def test_what_is_remembered_is_bounded() -> None:
    backoff = ToolBackoff()
    for pid in range(MAX_KNOWN + 10):
        backoff.note((pid, 1), LATE, 0.0)
    assert len(backoff._troubles) == MAX_KNOWN
    assert backoff.times((MAX_KNOWN + 9, 1)) == 1
