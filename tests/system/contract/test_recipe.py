"""The patches in CONTRIBUTING work as soon as they are applied: a rule, and a collector."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

ASK_RULE = """
from tests.core.builders import IN_TORCH_ALL_REDUCE, a_case, ranks_in
from tests.core.recording import a_recorded_case, calls
from watchtower.core.diagnosis.diagnosis import diagnose

inside = calls("all_reduce", before=30, open=1)
built = ranks_in(4, IN_TORCH_ALL_REDUCE)
halves = {"a": [0, 1], "b": [2, 3]}
for groups in (halves, {"w": range(4)}):
    made = {rank: {name: inside for name in groups if rank in groups[name]} for rank in range(4)}
    said = diagnose(a_recorded_case(built, groups, made))
    print(said.cause.value, said.summary, *said.next_steps, sep="|")
"""

ASK_COLLECTOR = """
import sys

from agent.collectors import make_collectors
from dashboards import node

(collector,) = (each for each in make_collectors("/") if each.name == "open_files")
sys.modules[type(collector).__module__].FULL = 0.0
(observation,) = collector.collect(1.0)
(sample,) = collector.samples(0.0)
titles = [panel["title"] for each in node.BOARD.rows for _, panel in each.panels]
print(observation.name, observation.text, sample.spec.name, *titles, sep="|")
"""


def test_the_patch_of_a_rule_makes_a_rule_that_works(tmp_path: Path) -> None:
    several, one = answer(ASK_RULE, tmp_path, patch_of("fabric_fault.py")).splitlines()
    assert several.startswith(
        "fabric_fault|No rank is to blame: all members have entered all_reduce"
    )
    assert several.split("|")[2].startswith("check what connects these nodes")
    assert one.startswith("symmetric_hang|")


def test_the_patch_of_a_collector_makes_a_collector_with_a_metric_and_a_panel(
    tmp_path: Path,
) -> None:
    (line,) = answer(ASK_COLLECTOR, tmp_path, patch_of("open_files.py")).splitlines()
    name, text, metric, *titles = line.split("|")
    assert (name, metric) == ("open_files", "watchtower_open_files_ratio")
    assert text.startswith("the node has ")
    assert "Open files" in titles


def patch_of(new_file: str) -> str:
    """The patch in CONTRIBUTING that adds this file."""
    patches = re.findall(
        r"^```diff\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S
    )
    (patch,) = (each for each in patches if f"/{new_file}\n" in each)
    return str(patch)


def answer(program: str, folder: Path, patch: str) -> str:
    """What a program prints that runs with a patched copy of the sources."""
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
