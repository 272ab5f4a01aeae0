"""60 jobs of another user, on whose processes py-spy hangs, delay no dump of a job beside them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.dumpers.python_stacks import find_py_spy
from agent.dumps.triggers import SATISFIED_BY_S
from tests.agent.agent_scene import RecordingTower
from tests.system.agent.agent_processes import RunningAgent, Victim
from tests.waiting import wait_until

Start = Callable[..., Victim]
Run = Callable[..., RunningAgent]

HOSTILE_USER = 64102
HOSTILE = f"uid:{HOSTILE_USER}"
JOBS, RANKS_EACH = 60, 8
LATER_S = 2.0

SLEEPERS = f"""
import os, sys, time
os.setgroups([]); os.setresgid(*[{HOSTILE_USER}] * 3); os.setresuid(*[{HOSTILE_USER}] * 3)
for job in range({JOBS}):
    for rank in range({RANKS_EACH}):
        env = {{**os.environ, "WATCHTOWER_JOB": f"bad{{job}}", "RANK": str(rank)}}
        os.posix_spawn("/bin/sleep", ["/bin/sleep", "600"], env)
print("ready", flush=True)
time.sleep(600)
"""

TOOL = """#!/bin/sh
for pid; do :; done
if [ "$(stat -c %u /proc/$pid)" = {user} ]; then sleep 600; fi
exec {py_spy} "$@"
"""


def order(number: int, job: str, owner: str) -> dict[str, Any]:
    return {"id": f"{job}.{number}", "job": job, "owner": owner, "expires_s": 60.0}


def time_dump(tower: RecordingTower, number: int, *others: dict[str, Any]) -> float:
    """Order a dump of the victim after those of others; return how long its first round takes."""
    tower.orders = [*others, order(number, "victim", f"uid:{os.getuid()}")]
    began = time.monotonic()

    def arrived(number_of_round: int) -> list[dict[str, Any]]:
        wanted = (f"victim.{number}", number_of_round)
        return [each for each in list(tower.dumps) if (each["reason"], each["round"]) == wanted]

    (batch, *_) = wait_until(lambda: arrived(1), "the victim is dumped")
    took_s = time.monotonic() - began
    assert [rank.get("failure") for rank in batch["ranks"]] == [None] * RANKS_EACH
    wait_until(lambda: arrived(2), "the dump is over")
    time.sleep(SATISFIED_BY_S + 0.5)  # until then the agent takes no other one
    return took_s


@pytest.mark.skipif(os.geteuid() != 0, reason="takes on another user's identity: run it as root")
def test_sixty_jobs_on_which_py_spy_hangs_delay_no_dump_of_another_user(
    tower: RecordingTower, start: Start, run_agent: Run, tmp_path: Path
) -> None:
    if not find_py_spy():
        pytest.skip("py-spy is not installed: pip install py-spy")
    tool = tmp_path / "py-spy"
    tool.write_text(TOOL.format(user=HOSTILE_USER, py_spy=find_py_spy()))
    tool.chmod(0o755)
    for rank in range(RANKS_EACH):
        start(RANK=str(rank), WATCHTOWER_JOB="victim")
    agent = run_agent(tower.url, "--py-spy", str(tool))
    wait_until(lambda: len(tower.ranks()) == RANKS_EACH, "the victim is found")
    usual_s = time_dump(tower, 0)
    start([sys.executable, "-c", SLEEPERS])
    every = (1 + JOBS) * RANKS_EACH
    wait_until(lambda: len(tower.reports[-1]["ranks"]) == every, "the others are found", 60)
    took_s = []
    for number in (1, 2):
        flood = [order(number, f"bad{job}", HOSTILE) for job in range(JOBS)]
        took_s.append(time_dump(tower, number, *flood))
        # The first dump of theirs is over when its round has no time left.
        wait_until(lambda: [each for each in list(tower.dumps) if each["owner"] == HOSTILE], "one")
    # The better one: this machine may be busy with other tests.
    assert min(took_s) < usual_s + LATER_S
    hung = [batch for batch in tower.dumps if batch["owner"] == HOSTILE]
    failed = [rank.get("failure") or {} for batch in hung for rank in batch["ranks"]]
    assert "timeout" in {each.get("kind") for each in failed}
    for report in tower.reports:
        assert report.get("limits", {}).get("python_stacks", "") == ""
    wait_until(lambda: agent.says(f"in a row on processes of {HOSTILE}"), "it is logged")
