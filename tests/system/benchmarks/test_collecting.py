"""Evidence taken from real processes, of torch and of a whole drill, and peers that judge it."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.accuracy.asking import ask_peers
from benchmarks.accuracy.collecting import ask_rank
from benchmarks.accuracy.evidence import read_evidence
from benchmarks.accuracy.live import TOOLS, monitored_barrier
from benchmarks.accuracy.live.__main__ import make_row
from benchmarks.accuracy.live.staging import Heard, play
from benchmarks.accuracy.live.tool import Said
from benchmarks.accuracy.peers import frtrace
from benchmarks.accuracy.results import key_of
from benchmarks.drilling import run_drill
from tests.benchmarks.peer_evidence import recorded_cascade
from watchtower.drills.catalogue import find_drill
from watchtower.drills.settings import DrillSettings

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


@pytest.mark.torch
def test_torchs_analyzer_breaks_as_shipped_and_accuses_the_victim_when_repaired() -> None:
    pytest.importorskip("torch")
    answers = ask_peers(recorded_cascade(), (frtrace.AS_SHIPPED, frtrace.REPAIRED))
    shipped, repaired = answers["torchfrtrace"], answers["torchfrtrace_repaired"]
    assert (shipped["failed"], shipped["accused"]) == (True, [])
    assert "KeyError" in str(shipped["said"])
    assert (repaired["accused"], repaired["failed"]) == ([2, 3], False)


def test_rows_of_a_tool_are_runs_of_their_own() -> None:
    drill = find_drill("busy_loop")
    heard = Heard(ranks=(3,), said=Said(accused=(3,), text="3"), fault_to_verdict_s=10.2)
    rows = [make_row(tool, drill, 8, heard, None) for tool in TOOLS]
    assert len({key_of(row) for row in rows} | {key_of(rows[0] | {"settings": "default"})}) == (
        len(rows) + 1
    )
    assert rows[0]["injected"] == {"ranks": [3], "cause": "busy_loop"}
    assert (rows[0]["accused"], rows[0]["fault_to_verdict_s"]) == ([3], 10.2)


@pytest.mark.torch
@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed: `make test-torch` installs it and runs these",
)
def test_monitored_barrier_names_the_sleeping_rank_of_a_real_job() -> None:
    tool = replace(monitored_barrier.TOOL, environment=lambda _: {"LIVE_THRESHOLD_S": "3"})
    settings = DrillSettings(step_s=0.1, warmup_steps=2, verdict_deadline_s=30)
    heard = play(tool, find_drill("dataloader_sleep"), 4, rank=2, settings=settings)
    assert (heard.ranks, heard.said.accused) == ((2,), (2,))
    assert heard.fault_to_verdict_s is not None
    assert heard.fault_to_verdict_s >= 2.5
