"""Failures of py-spy are counted by owner. Only the agent's own process is evidence of a node."""

from __future__ import annotations

import logging

import pytest

from agent.dumpers.python_stacks import (
    CHECK_EVERY_S,
    FAILURES_IN_A_ROW,
    MAX_OWNERS,
    StackTrouble,
)
from watchtower.wire.dumps import DumpFailure, FailureKind

TIMEOUT = DumpFailure(kind=FailureKind.TIMEOUT, help_text="py-spy did not return")
GONE = DumpFailure(kind=FailureKind.GONE, help_text="it ended")


class Agent:
    """The agent's own process, with a py-spy that works or not."""

    def __init__(self, failure: DumpFailure | None = None) -> None:
        self.failure, self.checks = failure, 0
        self.trouble = StackTrouble(self.dump, lambda step: step())

    def dump(self) -> DumpFailure | None:
        self.checks += 1
        return self.failure

    def note(self, owner: str, failure: DumpFailure | None, times: int = 1, now: float = 0) -> None:
        for _ in range(times):
            self.trouble.note(owner, failure, now)


def test_failures_of_one_owner_are_never_reported_for_the_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent()
    for number in range(10):
        agent.note("uid:2000", TIMEOUT, 100, now=number * CHECK_EVERY_S)
    assert agent.trouble.sentence() == ""
    (record,) = caplog.records
    assert "of uid:2000, last (timeout): py-spy did not return" in record.getMessage()


def test_failures_of_many_owners_are_not_reported_for_the_node_either() -> None:
    agent = Agent()
    for number in range(100):
        agent.note(f"uid:{number}", TIMEOUT, FAILURES_IN_A_ROW)
    assert agent.trouble.sentence() == ""
    assert agent.checks == 1


def test_a_py_spy_that_fails_on_the_agent_itself_is_a_limit_of_the_node_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    agent = Agent(TIMEOUT)
    agent.note("uid:1", TIMEOUT, FAILURES_IN_A_ROW - 1)
    agent.note("uid:1", GONE)  # says nothing of py-spy
    assert agent.checks == 0
    for number in range(10):
        agent.note("uid:1", TIMEOUT, 5, now=number * CHECK_EVERY_S)
    assert "process of the agent too (timeout): py-spy did not return" in agent.trouble.sentence()
    assert agent.checks == 2 * 10
    assert len(caplog.records) == 1
    agent.note("uid:2", None)  # whoever it is: py-spy works
    assert agent.trouble.sentence() == ""
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_one_owner_s_failures_do_not_count_for_another_one() -> None:
    agent = Agent(TIMEOUT)
    for number in range(FAILURES_IN_A_ROW - 1):
        agent.note("uid:1", TIMEOUT)
        agent.note("uid:2", TIMEOUT)
        agent.note("uid:3", None, now=number)
    assert agent.checks == 0


def test_a_py_spy_that_works_on_the_agent_again_is_no_limit_any_more() -> None:
    agent = Agent(TIMEOUT)
    agent.note("uid:1", TIMEOUT, FAILURES_IN_A_ROW)
    assert agent.trouble.sentence()
    agent.failure = None
    agent.note("uid:1", TIMEOUT, now=CHECK_EVERY_S)
    assert agent.trouble.sentence() == ""


def test_what_is_remembered_of_owners_is_bounded() -> None:
    agent = Agent()
    for number in range(MAX_OWNERS + 10):
        agent.note(f"uid:{number}", TIMEOUT)
    assert len(agent.trouble._in_a_row) == MAX_OWNERS
