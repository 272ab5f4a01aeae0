"""Sentences about capabilities describe what the kernel does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from agent.gaps import in_user_namespace
from agent.procfs import Proc
from tests.system.agent.agent_processes import clean_environment

PTRACE, READ_SEARCH, SYSLOG = 1 << 19, 1 << 2, 1 << 34


CAN_READ = """
import os, sys
def can(name):
    try:
        open(f"/proc/{sys.argv[1]}/{name}", "rb").read(1)
    except OSError:
        return False
    return True
print(can("environ"), can("syscall"), os.access("/", os.R_OK))
from agent.gaps import find_gaps
from agent.procfs import Proc
print(repr(find_gaps(Proc(), "/bin/py-spy").process))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="takes on another user's identity: run it as root")
@pytest.mark.parametrize(
    ("names", "all_ranks"),
    [
        ("", False),
        ("+sys_ptrace", False),
        ("+dac_read_search", False),
        ("+sys_ptrace,+dac_read_search", True),
    ],
)
def test_what_is_said_of_capabilities_is_what_the_kernel_does(names: str, all_ranks: bool) -> None:
    """As another user with exactly these, on a process of this one."""
    if in_user_namespace(Proc()):
        pytest.skip("capabilities end at a user namespace here (rootless container)")
    if not shutil.which("setpriv"):
        pytest.skip("needs setpriv: apt-get install util-linux")
    caps = f"-all{',' if names else ''}{names}"
    command = ["setpriv", "--reuid", "65534", "--clear-groups", "--inh-caps", caps]
    command += ["--ambient-caps", caps, "--bounding-set", caps]
    done = subprocess.run(
        [*command, sys.executable, "-c", CAN_READ, str(os.getpid())],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        pytest.skip(f"another user cannot run this Python: {done.stderr[-300:]}")
    reads, text = done.stdout.splitlines()
    assert reads.split()[:2] == [str(all_ranks)] * 2
    assert ("finds only ranks of user" in text) != all_ranks
