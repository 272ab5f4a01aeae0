"""A py-spy that never gives a stack is a limit in the log and in the reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.agent.agent_scene import RecordingTower
from tests.system.agent.agent_processes import RunningAgent, Victim
from tests.waiting import wait_until

Start = Callable[..., Victim]
Run = Callable[..., RunningAgent]


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
    limit = (
        "no Python stacks: py-spy fails on a process of the agent too (other): "
        "Error: no such symbol"
    )
    wait_until(
        lambda: tower.reports and limit in tower.reports[-1]["limits"]["python_stacks"],
        "the limit is reported",
    )
    assert agent.output().count(f"WARNING agent.dumpers.python_stacks: limit: {limit}") == 1
