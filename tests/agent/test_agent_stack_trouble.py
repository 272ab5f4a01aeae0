"""Failures of py-spy in a row are logged once."""

from __future__ import annotations

import logging

import pytest

from agent.dumpers.stack_trouble import FAILURES_IN_A_ROW, StackTrouble
from watchtower.wire.dumps import DumpFailure, FailureKind

TIMEOUT = DumpFailure(kind=FailureKind.TIMEOUT, help_text="py-spy did not return")
GONE = DumpFailure(kind=FailureKind.GONE, help_text="it ended")


def test_failures_in_a_row_are_said_once_and_so_is_their_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    trouble = StackTrouble()
    for _ in range(FAILURES_IN_A_ROW - 1):
        trouble.note(TIMEOUT)
    trouble.note(GONE)  # says nothing of py-spy
    assert trouble.sentence() == ""
    for _ in range(10):
        trouble.note(TIMEOUT)
    assert "failed 13 times in a row, last (timeout): py-spy did not return" in trouble.sentence()
    assert len(caplog.records) == 1
    trouble.note(None)
    assert trouble.sentence() == ""
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
