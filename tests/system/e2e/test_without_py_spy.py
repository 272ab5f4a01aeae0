"""Where py-spy is missing the agent says so at its start and the verdict says what it lacks."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.system.e2e.drilled import assert_right, read_result, run_by_command

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def python_without_tools(tmp_path: Path) -> Path:
    """A Python that imports everything this one does, with an empty folder of programs."""
    folder = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    packages = sysconfig.get_path("purelib")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    link = folder / "lib" / version / "site-packages" / "with_ours.pth"
    # site.addsitedir, because editable installs are .pth files themselves.
    link.write_text(f"import site; site.addsitedir({packages!r})\n")
    return folder / "bin" / "python"


def test_a_stopped_rank_is_named_without_stacks_and_the_gap_is_told(python_without_tools: Path):
    environment = os.environ | {"PATH": "/usr/bin:/bin"}
    done = run_by_command("sigstop", "stdlib", python_without_tools, env=environment)
    assert_right(done)
    missing = read_result(done)["verdict"]["missing_evidence"]
    assert any("py-spy" in sentence for sentence in missing), missing
