"""Where py-spy is missing the agent says so at its start and the verdict says what it lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

CONFIG = Path(__file__).parent / "fast.toml"


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
    command = [python_without_tools, "-P", "-m", "watchtower", "drill", "sigstop", "--json"]
    done = subprocess.run(
        [*command, "--ranks", "4", "--backend", "stdlib", "--config", CONFIG],
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | {"PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert done.stdout, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["right_rank"], done.stdout
    assert result["right_cause"], done.stdout
    assert any("py-spy" in sentence for sentence in result["verdict"]["missing_evidence"])
