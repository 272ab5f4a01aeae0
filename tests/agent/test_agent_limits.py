"""What an agent may not do, said in sentences, from a /proc that the test writes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from agent_scene import clean_environment

from agent.limits import CONTAINED_HELP, in_user_namespace, look_at_limits
from agent.procfs import Proc
from watchtower.wire.report import AgentLimits

ALL = (1 << 19) | (1 << 2)


def limits(tmp_path: Path, *, scope: int | None, capabilities: int, py_spy: str) -> AgentLimits:
    own = tmp_path / "proc" / str(os.getpid())
    own.mkdir(parents=True)
    (own / "status").write_text(f"Name:\tpython\nCapEff:\t{capabilities:016x}\n")
    if scope is not None:
        yama = tmp_path / "proc/sys/kernel/yama"
        yama.mkdir(parents=True)
        (yama / "ptrace_scope").write_text(f"{scope}\n")
    return look_at_limits(Proc(str(tmp_path)), py_spy)


@pytest.mark.parametrize("scope", [None, 0, 1, 2])
def test_with_all_capabilities_nothing_is_limited(tmp_path: Path, scope: int | None) -> None:
    found = limits(tmp_path, scope=scope, capabilities=ALL, py_spy="/bin/py-spy")
    assert found == AgentLimits()


def test_a_missing_py_spy_is_said_with_how_to_get_it(tmp_path: Path) -> None:
    found = limits(tmp_path, scope=None, capabilities=ALL, py_spy="")
    assert "pip install" in found.python_stacks


@pytest.mark.parametrize(
    ("scope", "capabilities", "words"),
    [
        (1, 0, "WATCHTOWER_PTRACE=any"),
        (2, 0, "CAP_SYS_PTRACE"),
        (3, ALL, "until the next boot"),
    ],
)
def test_yama_is_named_with_a_way_out(
    tmp_path: Path, scope: int, capabilities: int, words: str
) -> None:
    found = limits(tmp_path, scope=scope, capabilities=capabilities, py_spy="/bin/py-spy")
    assert words in found.python_stacks


PTRACE, READ_SEARCH, SYSLOG = 1 << 19, 1 << 2, 1 << 34
ONLY_OWN = f"finds ranks of user {os.getuid()} only: for those of others it needs "


@pytest.mark.parametrize("syslog", [0, SYSLOG])
@pytest.mark.parametrize(
    ("capabilities", "said"),
    [
        (0, ONLY_OWN + "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"),
        (PTRACE, ONLY_OWN + "CAP_DAC_READ_SEARCH too, one without the other is of no use"),
        (READ_SEARCH, ONLY_OWN + "CAP_SYS_PTRACE too, one without the other is of no use"),
        (PTRACE | READ_SEARCH, ""),
    ],
)
def test_what_a_missing_capability_costs_is_said(
    tmp_path: Path, capabilities: int, syslog: int, said: str
) -> None:
    found = limits(tmp_path, scope=None, capabilities=capabilities | syslog, py_spy="/bin/py-spy")
    assert found == AgentLimits(process=said)


def test_a_container_of_its_own_is_said(tmp_path: Path) -> None:
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").touch()
    found = limits(tmp_path, scope=None, capabilities=ALL, py_spy="/bin/py-spy")
    assert found == AgentLimits(process=CONTAINED_HELP)


def test_capabilities_of_a_user_namespace_end_there(tmp_path: Path) -> None:
    own = tmp_path / "proc" / str(os.getpid())
    own.mkdir(parents=True)
    (own / "uid_map").write_text("         0       1000          1\n")
    (own / "status").write_text(f"CapEff:\t{ALL:016x}\n")
    found = look_at_limits(Proc(str(tmp_path)), "/bin/py-spy")
    assert "user namespace" in found.process


CAN_READ = """
import os, sys
def can(name):
    try:
        open(f"/proc/{sys.argv[1]}/{name}", "rb").read(1)
    except OSError:
        return False
    return True
print(can("environ"), can("syscall"), os.access("/", os.R_OK))
from agent.limits import look_at_limits
from agent.procfs import Proc
print(repr(look_at_limits(Proc(), "/bin/py-spy").process))
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
    reads, said = done.stdout.splitlines()
    assert reads.split()[:2] == [str(all_ranks)] * 2
    assert ("finds ranks of user" in said) != all_ranks
