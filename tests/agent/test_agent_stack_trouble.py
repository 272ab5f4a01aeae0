"""A py-spy that never gives a stack is told of, once, and where people look."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_scene import RecordingTower, RunningAgent, Victim, wait_until

from agent.dumpers.stack_trouble import FAILURES_IN_A_ROW, StackTrouble
from watchtower.wire.dumps import DumpFailure, FailureKind

Start = Callable[..., Victim]
Run = Callable[..., RunningAgent]

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


def test_one_that_never_works_is_a_limit_in_the_log_and_in_the_reports(
    tower: RecordingTower, start: Start, run_agent: Run, tmp_path: Path
) -> None:
    broken = tmp_path / "py-spy"
    broken.write_text("#!/bin/sh\necho 'Error: no such symbol' >&2\nexit 1\n")
    broken.chmod(0o755)
    tower.deadline_s = 0.2
    for rank in range(2):
        start(RANK=str(rank), WORLD_SIZE="2", WATCHTOWER_JOB="llama").do("beat(1)")
    agent = run_agent(tower.url, "--py-spy", str(broken))
    limit = "no Python stacks: py-spy failed 4 times in a row, last (other): Error: no such symbol"
    wait_until(
        lambda: tower.reports and limit in tower.reports[-1]["limits"]["python_stacks"],
        "the limit is reported",
    )
    assert agent.output().count(f"WARNING agent.dumpers.stack_trouble: limit: {limit}") == 1
