"""Runs drills a few at a time: they spend most of their time waiting for clocks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
}
NEED_MORE = {"d_state_fuse", "frozen", "clock_step", "sigkill", "node_lost"}
"""Drills that need root or a program that not every machine has, and say so."""

Done = subprocess.CompletedProcess[str]
Runs = dict[str, "Future[Done]"]


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


def start_drills(request: pytest.FixtureRequest, backend: str, at_once: int) -> Iterator[Runs]:
    """Start the drills of the selected tests of a module; each test waits for its own."""
    wanted = [
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.module is request.module
        and hasattr(item, "callspec")
    ]
    with ThreadPoolExecutor(at_once) as pool:
        runs = {name: pool.submit(run_drill, name, backend) for name in wanted}
        yield runs
        for run in runs.values():
            run.cancel()


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
