"""The unit files as systemd-analyze judges them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UNITS = ROOT / "deploy" / "systemd"
MAX_EXPOSURE = {"watchtower-agent": 3.3, "watchtower-tower": 2.0}
"""0 is sealed, 10 is wide open; the daemons people run today have 9.2 and more."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is not here: `apt-get install systemd` brings it, nothing is started",
)


@needs_systemd
@pytest.mark.parametrize("unit", MAX_EXPOSURE)
def test_the_unit_is_not_more_exposed_than_promised(unit: str):
    path = UNITS / f"{unit}.service"
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) <= MAX_EXPOSURE[unit], done.stdout


@needs_systemd
@pytest.mark.parametrize("unit", MAX_EXPOSURE)
def test_systemd_understands_every_line(unit: str, tmp_path: Path):
    text = (UNITS / f"{unit}.service").read_text("utf-8")
    program = re.search(r"^ExecStart=(\S+)", text, re.MULTILINE)
    assert program
    copy = tmp_path / f"{unit}.service"
    copy.write_text(text.replace(program[1], "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # Only of our own unit: verify also speaks of the machine's other ones.
    own = [line for line in done.stderr.splitlines() if unit in line]
    assert own == []
    assert done.returncode == 0, done.stderr
