"""Drills as tests run them: which ones, how scaled, and what their output must say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from watchtower.drills.catalogue import DRILLS

CONFIG = Path(__file__).parent / "fast.toml"

DRILL_DEADLINE_S = 240.0

LEFT_OUT = {
    # Variants of drills that run, and long ones: `WATCHTOWER_DRILLS=all` runs them too.
    "tower_restart_suspect",
    "loader_worker_lock",
    "d_state_fuse",
    "frozen",
    "compile_first_step",
    "grad_accumulation",
    "gc_pause",
    "restart_counts_differ",
    "clock_step",
    "sigstop_unbeaten",
    "tp_dp_cascade_unbeaten",
    "d_state_unbeaten",
}
NEED_MORE = {
    "d_state_fuse",
    "frozen",
    "clock_step",
    "sigkill",
    "launcher_kills_rest",
    "node_lost",
    "symmetric",
}
"""Drills that need root or a program that not every machine has, and say so."""

Done = subprocess.CompletedProcess[str]


def names_of_drills(backend: str) -> list[str]:
    """The drills to test on a backend."""
    run_all = os.environ.get("WATCHTOWER_DRILLS") == "all"
    names = [drill.name for drill in DRILLS if backend in drill.backends]
    return [name for name in names if run_all or name not in LEFT_OUT]


def run_drill(name: str, backend: str, python: str | Path = sys.executable, **options) -> Done:
    """Run one drill with four ranks and the scaled settings."""
    command = [str(python), "-P", "-m", "watchtower", "drill", name, "--json", "--ranks", "4"]
    return subprocess.run(
        [*command, "--backend", backend, "--config", str(CONFIG)],
        capture_output=True,
        text=True,
        timeout=DRILL_DEADLINE_S,
        check=False,
        **options,
    )


def read_result(done: Done) -> dict:
    """Give the drill's result; fails the test with its output when there is none."""
    assert done.stdout, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    if "reason" in result and result["drill"] in NEED_MORE:
        pytest.skip(result["reason"])
    assert "reason" not in result, result["reason"] + done.stderr[-3000:]
    return result


def assert_right(done: Done) -> None:
    """Fail unless rank and cause are right."""
    result = read_result(done)
    assert result["right_rank"], done.stdout + done.stderr[-3000:]
    assert result["right_cause"], done.stdout + done.stderr[-3000:]
    assert done.returncode == 0
