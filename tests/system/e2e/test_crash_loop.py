"""A few rounds of the kill -9 loop; `benchmarks/crash_loop.py` is the long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOOP = Path(__file__).parents[3] / "benchmarks" / "crash_loop.py"


@pytest.mark.e2e
def test_a_tower_that_is_killed_again_and_again_loses_nothing():
    done = subprocess.run(
        [sys.executable, str(LOOP), "--kills", "3", "--jobs", "2"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "violations=0" in done.stdout
