"""The rule that CONTRIBUTING shows as a patch works as soon as the patch is applied."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

ASK = """
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


def test_the_patch_of_the_recipe_makes_a_rule_that_works(tmp_path: Path) -> None:
    (patch,) = re.findall(
        r"^```diff\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S
    )
    without = shutil.ignore_patterns("__pycache__", "programs")
    shutil.copytree(ROOT / "watchtower", tmp_path / "watchtower", ignore=without)
    # Not in a repository: else git would leave out what lies outside of it.
    git = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    subprocess.run(
        ["git", "apply", "--verbose", "-"],
        input=patch,
        text=True,
        cwd=tmp_path,
        env=git,
        check=True,
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    answer = subprocess.run(
        [sys.executable, "-c", ASK],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    several, one = answer.stdout.splitlines()
    assert several.startswith(
        "fabric_fault|No rank is to blame: all members have entered all_reduce"
    )
    assert several.split("|")[2].startswith("check what connects these nodes")
    assert one.startswith("symmetric_hang|")
