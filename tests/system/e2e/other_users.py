"""Processes of other users than the test's own: a Python that they can run, and their rights."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

AGENT_USER, JOB_USER = 64101, 64102
"""Numbers that nobody has: the kernel needs no name for them."""

UNIT = Path(__file__).parents[3] / "deploy" / "systemd" / "watchtower-agent.service"


def unit_capabilities() -> list[str]:
    """The capabilities that the agent's unit gives it, as setpriv calls them."""
    text = re.search(r"^AmbientCapabilities=(.*)$", UNIT.read_text("utf-8"), re.MULTILINE)
    assert text
    return [name.removeprefix("CAP_").lower() for name in text[1].split()]


def become(user: int, capabilities: list[str]) -> list[str]:
    """The words before a command that make it run as this user, as the unit would start it."""
    sets = ",".join(["-all", *(f"+{name}" for name in capabilities)])
    return [
        *("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"),
        *(f"--inh-caps={sets}", f"--ambient-caps={sets}", f"--bounding-set={sets}"),
        *("--no-new-privs", "--pdeathsig=KILL"),
    ]


def why_not() -> str:
    """Return why this machine cannot play other users; "" when it can."""
    if os.geteuid() != 0:
        return "only root can start processes of other users: `sudo make test-system` runs this"
    if shutil.which("setpriv") is None:
        return "setpriv is not here: it is in util-linux"
    return ""


needs_other_users = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
"""Skips a test on a machine that cannot start processes of other users."""


def make_shared_python(folder: Path) -> Path | None:
    """Make a Python with our packages that every user can run; return None where that fails.

    The one that runs the tests may lie in root's home.
    """
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for base in (os.path.realpath(sys.executable), f"/usr/bin/{version}"):
        home = folder / "python"
        made = subprocess.run(
            [base, "-m", "venv", "--without-pip", "--clear", home], check=False, timeout=60
        )
        if made.returncode != 0:
            continue
        # site.addsitedir, because editable installs are .pth files themselves.
        link = home / "lib" / version / "site-packages" / "with_ours.pth"
        link.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        python = home / "bin" / "python"
        words = [
            *become(JOB_USER, []),
            python,
            "-I",
            "-c",
            "import agent.daemon, watchtower.commands.client",
        ]
        try:
            tried = subprocess.run(words, capture_output=True, check=False, timeout=60, cwd="/")
        except OSError:
            continue
        if tried.returncode == 0:
            return python
    return None


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user can enter. Only root can enter the folders that pytest makes."""
    folder = Path(tempfile.mkdtemp(prefix="watchtower-test-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def shared_python(shared_folder: Path) -> Path:
    """A Python with our packages that every user can run."""
    python = make_shared_python(shared_folder)
    if python is None:
        pytest.skip("other users can run no Python of this version, or not read these sources")
    return python
