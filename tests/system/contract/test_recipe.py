"""The patches in docs/recipes work as soon as they are applied."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

ASK_CAUSE = """
from dataclasses import replace

from tests.diagnosis.causes.test_odd_gpu import SPINNING, observed
from watchtower.diagnosis.diagnosis import diagnose

apart = observed(SPINNING)
first, *rest = apart.nodes
same = tuple(replace(each, subject="pci:0000:3b:00") for each in first.observations)
for case in (replace(apart, nodes=(replace(first, observations=same), *rest)), apart):
    found = diagnose(case)
    named = (found.cause.value, found.domain.value, [suspect.rank for suspect in found.suspects])
    print(*named, *found.next_steps, *(e.text for e in found.evidence), sep="|")
"""

ASK_COLLECTOR = """
import sys

from agent.collectors.node import make_collectors
from dashboards import node

(collector,) = (each for each in make_collectors("/") if each.name == "open_files")
sys.modules[type(collector).__module__].FULL = 0.0
(observation,) = collector.collect(1.0)
(sample,) = collector.samples(0.0)
titles = [panel["title"] for each in node.BOARD.rows for _, panel in each.panels]
print(observation.name, observation.text, sample.spec.name, *titles, sep="|")
"""


def test_the_patch_of_a_cause_makes_a_cause_that_works(tmp_path: Path) -> None:
    shared, apart = answer(ASK_CAUSE, tmp_path, recipe("cause")).splitlines()
    assert shared.startswith("misconfigured|user_code|[0, 1, 2, 3]|check CUDA_VISIBLE_DEVICES")
    assert "4 ranks use one GPU" in shared
    assert apart.startswith("unknown|unknown|[]|")


def test_the_patch_of_a_collector_makes_a_collector_with_a_metric_and_a_panel(
    tmp_path: Path,
) -> None:
    (line,) = answer(ASK_COLLECTOR, tmp_path, recipe("collector")).splitlines()
    name, text, metric, *titles = line.split("|")
    assert (name, metric) == ("open_files", "watchtower_open_files_ratio")
    assert text.startswith("the node has ")
    assert "Open files" in titles


def recipe(name: str) -> str:
    return (ROOT / f"docs/recipes/{name}.patch").read_text("utf-8")


def answer(program: str, folder: Path, patch: str) -> str:
    """The output of a program that runs with a patched copy of the sources."""
    without = shutil.ignore_patterns("__pycache__", "programs")
    for package in ("watchtower", "agent", "dashboards"):
        shutil.copytree(ROOT / package, folder / package, ignore=without)
    # Not in a repository: else git would leave out what lies outside of it.
    git = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    subprocess.run(
        ["git", "apply", "--verbose", "-"],
        input=patch,
        text=True,
        cwd=folder,
        env=git,
        check=True,
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
