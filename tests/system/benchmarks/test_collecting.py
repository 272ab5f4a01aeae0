"""Evidence taken from real processes: of torch, and of a whole drill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.accuracy.asking import ask_peers
from benchmarks.accuracy.collecting import ask_rank
from benchmarks.accuracy.evidence import read_evidence
from benchmarks.drilling import run_drill

ROOT = Path(__file__).resolve().parents[3]
LONG_S = 60.0
"""Seconds to wait for an answer. A machine with more work than processors delays any process."""

RANK = """
import sys, watchtower_heartbeat, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=sys.argv[1], rank=0, world_size=1)
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The only rank of a gloo job, after its first collective."""
    pytest.importorskip("torch")
    command = [sys.executable, "-c", RANK, f"file://{tmp_path}/store"]
    environment = os.environ | {"RANK": "0", "WORLD_SIZE": "1", "WATCHTOWER_PTRACE": "any"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.torch
def test_a_rank_gives_its_recorder_and_its_groups_until_it_is_stopped(
    rank: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert ask_rank(rank.pid, 0, tmp_path, LONG_S) == ""
    (tmp_path / "incident.json").write_text(CASE)
    evidence = read_evidence(tmp_path, "torch")
    assert evidence
    assert [each["profiling_name"] for each in evidence.recorders[0]["entries"]] == [
        "gloo:all_reduce"
    ]
    assert evidence.groups == {0: [("0", (0,))]}
    rank.send_signal(signal.SIGSTOP)
    wait_until_stopped(rank.pid)
    assert ask_rank(rank.pid, 0, tmp_path).startswith("no answer")


def wait_until_stopped(pid: int) -> None:
    """Wait for every thread: one that still runs after the signal may answer."""
    until = time.monotonic() + LONG_S
    while any(
        stat.read_text().rpartition(")")[2].split()[0] not in "Tt"
        for stat in Path(f"/proc/{pid}/task").glob("*/stat")
    ):
        assert time.monotonic() < until, f"process {pid} does not stop"
        time.sleep(0.01)


CASE = (
    '{"case": {"job": "a", "generation": 1, "world_size": 1, "typical_step_s": 1, "settle_s": 2,'
    ' "stalled_for_s": 9, "moving_cpu_cores": 0.05, "ranks": []}}'
)


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    os.environ.get("WATCHTOWER_DRILLS") != "all", reason="a whole drill: WATCHTOWER_DRILLS=all"
)
def test_the_evidence_of_a_drill_is_taken_while_its_job_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    config = str(ROOT / "tests/system/e2e/fast.toml")
    result = run_drill("lock_deadlock", ranks=4, config=config, evidence=tmp_path)
    assert len(result["incidents"]) == 1
    answers = ask_peers(read_evidence(tmp_path, "stdlib"))
    assert set(result["injected"]["ranks"]) <= set(answers["stack_majority"]["accused"])
