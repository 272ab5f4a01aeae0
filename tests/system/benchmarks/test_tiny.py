"""Every benchmark runs to its end with a tiny size, so that none rots.

What it measures then means nothing: these runs show only that it still measures.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.monitoring import needs_prometheus

ROOT = Path(__file__).parents[3]

TINY = {
    "accuracy.advised": "--only plain --seconds 1",
    "accuracy.healthy": "--job-hours 0",
    "accuracy.live": "--minutes 0 --tools monitored_barrier",
    "accuracy.matrix": "--cells 0",
    "accuracy.run": "--minutes 0",
    "agent": "--ranks 1 --gpus 1 --seconds 1",
    "alert_routes": "--hangs 1",
    "diagnosis": "--sizes 64",
    "flood": "--count 20 --floods processes --seconds 1",
    "garbage": "--seconds 1 --warmup 4 --clients 1",
    "harm": "--rounds 1 --steps 10 --only watched",
    "interpreter_start": "--rounds 3",
    "latency": "--runs 1 --ranks 2 --drills exception",
    "log_search": "--ranks 4 --megabytes 0.2",
    "loop": "--sizes 64",
    "native_places": "--rounds 1 --steps 40 --ranks 1",
    "pages": "--ranks 8 --seconds 2 --times 1",
    "restarts": "--jobs 2 --rates 60 --seconds 1",
    "rooms": "",
    "scrape": "64",
    "snapshots": "--ranks 16 --local 2",
}
"""The options of a tiny run of each benchmark. The score of `benchmarks.accuracy` begins no drill:
a drill takes half a minute, and appends to the published results."""

SCRIPTS = {"harm", "latency"}
"""Benchmarks that import their neighbours as scripts do."""

ELSEWHERE = {
    "accuracy.field": "tests/field judges the same cases",
    "accuracy.one": "accuracy.run starts it",
    "accuracy.report": "tests/benchmarks/test_accuracy.py",
    "crash_loop": "tests/system/e2e/test_crash_loop.py",
    "fleet": "a test below",
    "fleet_timeline": "fleet starts it",
    "fleet_tower": "fleet starts it",
    "heartbeat": "a test below",
    "report_cost": "a test below",
    "timed_job": "harm starts it",
}
"""Programs that another test or another benchmark runs."""


def find_programs() -> list[str]:
    """Return the modules of `benchmarks` that can be started."""
    folder = ROOT / "benchmarks"
    names = []
    for path in sorted(folder.rglob("*.py")):
        module = path.relative_to(folder).with_suffix("")
        if re.search(r'^if __name__ == "__main__":', path.read_text("utf-8"), re.MULTILINE):
            names.append(".".join(module.parts).removesuffix(".__main__"))
    return sorted(names)


def test_every_benchmark_has_a_tiny_size() -> None:
    assert find_programs() == sorted([*TINY, *ELSEWHERE])


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=needs_prometheus if name == "alert_routes" else ()) for name in TINY],
)
def test_a_benchmark_runs_to_its_end(name: str, tmp_path: Path) -> None:
    start = [f"benchmarks/{name}.py"] if name in SCRIPTS else ["-m", f"benchmarks.{name}"]
    program = subprocess.run(
        [sys.executable, *start, *TINY[name].split()],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    # 1: what it measured is over its limit, which says nothing about so small a run.
    assert program.returncode in (0, 1), program.stdout + program.stderr
    assert "Traceback" not in program.stderr, program.stderr
    assert program.stdout.strip() or name.startswith("accuracy."), program.stderr


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_storm_of_agents_that_obey_nothing():
    printed = run("benchmarks.fleet", "--sizes", "64", "--only", "storm")
    assert "dumps accepted 16 of 16" in printed
    assert re.search(r"suspect \d+\.\d s, right cause", printed)
    assert "diagnosed" in printed


def test_the_cost_of_a_report_in_two_versions():
    printed = run("benchmarks.report_cost", "--size", "64", "--rounds", "1", "--seconds", "1")
    assert printed.count("ratio") == 2
    assert printed.count(" 0 not accepted") == 4


BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "heartbeat.py"


def test_the_benchmark_gives_the_ratio_of_a_beat_to_a_clock_read() -> None:
    command = [sys.executable, str(BENCHMARK), "--json", "--rounds", "5", "--calls", "500"]
    result = json.loads(subprocess.check_output(command, timeout=60))
    assert abs(result["ratio"] - result["beat_ns"] / result["monotonic_ns_ns"]) < 0.02
    assert result["beat_ns"] > result["monotonic_ns_ns"] > result["loop_ns"] > 0
