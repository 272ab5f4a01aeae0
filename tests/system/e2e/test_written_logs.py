"""What ranks write decides in real jobs: in one that hangs, and in one that ended before that."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.agent.agent_processes import RunningAgent, clean_environment
from tests.towers import running_tower
from tests.waiting import wait_until
from watchtower.commands.client import TowerClient
from watchtower.drills.launching import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

RANKS, CULPRIT, JOB = 4, 2, "writes"
SETTINGS = (
    "[detection]\nsuspect_floor_s = 4\nhung_floor_s = 6\nsettle_s = 1\nno_heartbeat_sample_s = 1\n"
)

HOLD = "import time\ndef hold():\n    while True: time.sleep(0.5)\n"

BARRIER = f"""
import datetime, os, sys, traceback
import torch.distributed as dist
{HOLD}
dist.init_process_group("gloo")
try:
    if dist.get_rank() != {CULPRIT}:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=2), wait_all_ranks=True)
except RuntimeError:
    traceback.print_exc()
hold()
"""

WATCHDOG = f"""
import os, signal, sys, time
rank = int(os.environ["RANK"])
time.sleep(6)
print("some output", file=sys.stderr, flush=True)
if rank != {CULPRIT}:
    print(
        f"[rank{{rank}}]:[E ProcessGroupNCCL.cpp:616] "
        f"[PG ID 0 PG GUID 0(default_pg) Rank {{rank}}] "
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, "
        "NumelIn=8, NumelOut=8, Timeout(ms)=5000) ran for 5010 milliseconds before timing out.",
        file=sys.stderr, flush=True,
    )
time.sleep(0.5)
os.kill(os.getpid(), signal.SIGABRT if rank != {CULPRIT} else signal.SIGTERM)
"""


@contextlib.contextmanager
def running(folder: Path, program: str, *options: str) -> Iterator[TowerClient]:
    """Run a job whose ranks write to a file each, watched by an agent."""
    (folder / "tower.toml").write_text(SETTINGS)
    (folder / "main.py").write_text(program)
    mark, port = uuid.uuid4().hex, str(free_port())
    with contextlib.ExitStack() as stack:
        tower = stack.enter_context(running_tower(folder, f"--config={folder / 'tower.toml'}"))
        match = ("--match", f"WATCHTOWER_TEST={mark}")
        agent = RunningAgent(tower.url, *match, *options, log=folder / "agent.log")
        stack.callback(agent.close)
        for rank in range(RANKS):
            variables = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "WATCHTOWER_JOB": JOB,
                "WATCHTOWER_TEST": mark,
            }
            error = stack.enter_context((folder / f"rank.{rank}").open("wb"))
            child = subprocess.Popen(
                [sys.executable, str(folder / "main.py")],
                env=clean_environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=error,
                stderr=error,
            )
            stack.callback(child.wait)
            stack.callback(child.kill)
        yield TowerClient(tower.url)


def verdict_of(client: TowerClient) -> dict[str, Any]:
    """Return the verdict with the incident of the job, when there is one."""
    found: dict[str, Any] = {}

    def has_incident() -> bool:
        with contextlib.suppress(Exception):
            found.update(json.loads(json.dumps(client.verdict(JOB))))
        return bool(found.get("incident"))

    wait_until(has_incident, "the job has an incident", 60)
    return found


def quoted(verdict: dict[str, Any]) -> list[str]:
    return [each["text"] for each in verdict["evidence"] if each["source"] == "log"]


@pytest.mark.torch
@pytest.mark.ptrace
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_rank_that_did_not_come_to_a_barrier_is_named_with_the_line(tmp_path: Path) -> None:
    with running(tmp_path, BARRIER, "--output-lines", "5") as client:
        log = tmp_path / "rank.0"  # torch begins in a minute on a busy machine
        wait_until(lambda: "RuntimeError: [Rank 0]" in log.read_text(), "the barrier fails", 150)
        found = client.diagnose_now(JOB)
    assert [each["rank"] for each in found["suspects"]] == [CULPRIT]
    assert f"Ranks {CULPRIT} failed to pass monitoredBarrier in 2000 ms" in quoted(found)[0]


def test_a_job_that_ended_by_its_watchdogs_has_an_incident_that_names_the_rank(
    tmp_path: Path,
) -> None:
    with running(tmp_path, WATCHDOG, "--output-lines", "5") as client:
        found = verdict_of(client)
    assert [each["rank"] for each in found["suspects"]] == [CULPRIT], found
    assert any("SeqNum=41, OpType=ALLREDUCE" in text for text in quoted(found)), found


def test_without_the_option_nothing_is_read(tmp_path: Path) -> None:
    with running(tmp_path, WATCHDOG) as client:
        found = verdict_of(client)
    assert quoted(found) == []
