"""Snapshots by ordinary users, of their own jobs and of jobs of other users."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.gaps import find_missing_rights
from agent.procfs import Proc
from tests.system.agent.agent_processes import REPOSITORY, clean_environment
from tests.system.snapshots.hung_star import star
from watchtower.service.interpreter import module_command

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.ptrace,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users: run it as root"),
    pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv (util-linux)"),
]

OWNER, OTHER = 65_531, 65_532
"""Users without a name, and without files."""

NOT_DUMPABLE = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); print(flush=True); input()"
"""PR_SET_DUMPABLE: the files of such a process in /proc belong to root."""


def become(user: int) -> list[str]:
    """The beginning of a command that runs as this user. Skips the test if it cannot run Python."""
    prefix = ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"]
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, system):
        command = [*prefix, python]
        done = subprocess.run(
            [*command, "-c", "import agent.cli, watchtower.cli"],
            env=environment(),
            capture_output=True,
            check=False,
            timeout=60,
        )
        if done.returncode == 0:
            return command
    pytest.skip("another user cannot run a Python with these libraries")


def environment(**more: str) -> dict[str, str]:
    """For a Python outside of this virtual environment, too."""
    paths = (str(REPOSITORY), str(REPOSITORY / "heartbeat"), sysconfig.get_path("purelib"))
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))
    return clean_environment(**more) | {"PYTHONPATH": os.pathsep.join(paths), "PATH": path}


def run_as(user: int, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*become(user)[:-1], *module_command(*words, python=become(user)[-1])],
        env=environment(),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of OWNER that other users may enter. They may not enter pytest's folders."""
    with tempfile.TemporaryDirectory() as made:
        os.chown(made, OWNER, OWNER)
        os.chmod(made, 0o755)
        yield Path(made)


def test_each_user_finds_own_ranks_and_is_told_who_finds_the_others(folder: Path) -> None:
    if find_missing_rights(Proc()):
        pytest.skip("this root has not all capabilities")
    file = str(folder / "n0.json")
    with star(size=3, per_node=3, python=become(OWNER)) as job:
        job.hang(1)
        match = ("agent", "snapshot", "--node", "n0", "--match", job.match(0), "-o")
        own = run_as(OWNER, *match, file)
        other = run_as(OTHER, *match, "-")
        root = run_as(0, *match, "-")
    assert own.returncode == 0, own
    assert "job star: ranks 0-2 of 3" in own.stdout
    assert "read_shard" in own.stdout
    assert f"limit: ranks of other users than {name(OWNER)} are not found" in own.stdout
    assert "or with sudo" in own.stdout

    assert (other.returncode, other.stdout) == (1, "")
    assert f"no rank was found on this node with {job.match(0)}" in other.stderr
    assert f"{name(OWNER)} " in other.stderr
    assert "run the snapshot as the user of the job, or with sudo" in other.stderr

    assert root.returncode == 0, root
    assert "limit: ranks of other users" not in root.stderr
    verdict = run_as(OWNER, "watchtower", "diagnose", file)
    assert (verdict.returncode, verdict.stderr) == (0, ""), verdict
    assert "suspect: rank 1" in verdict.stdout
    refused = run_as(OTHER, "watchtower", "diagnose", file)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "run this command as that user, or with sudo" in refused.stderr


def test_a_process_of_the_own_user_that_cannot_be_read_is_named() -> None:
    names = {"RANK": "0", "WORLD_SIZE": "1", "WATCHTOWER_JOB": "closed"}
    closed = subprocess.Popen(
        [*become(OWNER), "-c", NOT_DUMPABLE],
        env=environment(**names),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert closed.stdout is not None
        assert closed.stdout.read(1) == b"\n"
        done = run_as(OWNER, "agent", "snapshot", "--match", "WATCHTOWER_JOB=closed", "-o", "-")
    finally:
        closed.kill()
        closed.communicate()
    assert done.returncode == 1, done
    assert f"such as pid {closed.pid}, cannot be read" in done.stderr


def name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"uid {user}"
