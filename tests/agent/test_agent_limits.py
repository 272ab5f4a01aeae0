"""What an agent may not do, said in sentences, from a /proc that the test writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.limits import CONTAINED_HELP, look_at_limits
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


@pytest.mark.parametrize("capabilities", [0, 1 << 19, 1 << 2])
def test_one_capability_alone_is_not_enough_for_other_users(
    tmp_path: Path, capabilities: int
) -> None:
    found = limits(tmp_path, scope=None, capabilities=capabilities, py_spy="/bin/py-spy")
    assert "CAP_DAC_READ_SEARCH" in found.process
    assert found.python_stacks == ""


def test_a_container_of_its_own_is_said(tmp_path: Path) -> None:
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").touch()
    found = limits(tmp_path, scope=None, capabilities=ALL, py_spy="/bin/py-spy")
    assert found == AgentLimits(process=CONTAINED_HELP)
