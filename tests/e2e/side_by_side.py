"""Runs drills a few at a time: they spend most of their time waiting for clocks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
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
    "sigstop_unbeaten",
    "tp_dp_cascade_unbeaten",
    "d_state_unbeaten",
}
NEED_MORE = {"d_state_fuse", "frozen", "clock_step", "sigkill", "node_lost", "symmetric"}
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


class Drills:
    """The drills of one module of tests, started together; each test waits for its own."""

    def __init__(self, backend: str, at_once: int) -> None:
        self._backend = backend
        self._pool = ThreadPoolExecutor(at_once)
        self._runs: dict[str, Future[Done]] = {}

    def start(self, names: Iterable[str]) -> None:
        """Begin with these, a few at a time."""
        for name in names:
            self._runs[name] = self._pool.submit(run_drill, name, self._backend)

    def result(self, name: str) -> Done:
        """Wait for one; starts it if nobody has."""
        if name not in self._runs:
            self.start([name])
        return self._runs[name].result()

    def stop(self) -> None:
        """Begin no further one."""
        self._pool.shutdown(wait=False, cancel_futures=True)


STDLIB = Drills("stdlib", at_once=4)
"""Begun when the tests are collected: they wait for clocks while the other tests run."""

TORCH = Drills("torch", at_once=2)
"""Begun by their first test: importing torch four times at once keeps two cores busy."""


def names_in(items: Iterable[pytest.Item], module: str) -> list[str]:
    """Name the drills that the selected tests of a module want."""
    return [
        item.callspec.params["name"]
        for item in items
        if isinstance(item, pytest.Function)
        and item.module.__name__ == module
        and hasattr(item, "callspec")
    ]


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
