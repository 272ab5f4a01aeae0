"""A library's function has a name of its own; what the user's code in it does is another matter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.frameworks import needs
from tests.system.small_jobs import CULPRIT, launched

pytestmark = [
    *needs("torch"),
    pytest.mark.e2e,
    pytest.mark.ptrace,
]

LIBRARY = """
def run_with_checkpoint(train):
    for step in range(10_000):
        train(step)
"""


def test_a_step_that_a_library_runs_is_no_checkpoint(tmp_path: Path):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "fitting.py").write_text(LIBRARY)
    with launched("in_library", tmp_path, str(packages), ranks=3) as job:
        hung = job.wait_for(lambda verdict: verdict["status"] == "hung", 90.0)
    assert [suspect["rank"] for suspect in hung["suspects"]] == [CULPRIT]
    assert hung["cause"] == "behind_collective"
    assert hung["waiting"] == "0,2"
    assert "in `score` at in_library.py" in hung["summary"]
