"""Sentences on what an agent may not do, from a /proc that the test writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.gaps import CONTAINED_HELP, explain_sampling, find_gaps
from agent.procfs import Proc
from watchtower.wire.report import AgentGaps

ALL = (1 << 19) | (1 << 2)


def gaps(tmp_path: Path, *, scope: int | None, capabilities: int, py_spy: str) -> AgentGaps:
    own = tmp_path / "proc" / str(os.getpid())
    own.mkdir(parents=True)
    (own / "status").write_text(f"Name:\tpython\nCapEff:\t{capabilities:016x}\n")
    if scope is not None:
        yama = tmp_path / "proc/sys/kernel/yama"
        yama.mkdir(parents=True)
        (yama / "ptrace_scope").write_text(f"{scope}\n")
    return find_gaps(Proc(str(tmp_path)), py_spy)


@pytest.mark.parametrize("scope", [None, 0, 1, 2])
def test_with_all_capabilities_nothing_is_limited(tmp_path: Path, scope: int | None) -> None:
    found = gaps(tmp_path, scope=scope, capabilities=ALL, py_spy="/bin/py-spy")
    assert (found.python_stacks, found.process) == ("", "")


def test_a_missing_py_spy_is_said_with_how_to_get_it(tmp_path: Path) -> None:
    found = gaps(tmp_path, scope=None, capabilities=ALL, py_spy="")
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
    found = gaps(tmp_path, scope=scope, capabilities=capabilities, py_spy="/bin/py-spy")
    assert words in found.python_stacks


@pytest.mark.parametrize(
    ("error", "paranoid", "words"),
    [
        ("", 4, ""),
        ("Permission denied", 4, "kernel.perf_event_paranoid=4 needs CAP_PERFMON"),
        ("Operation not permitted", 2, "(Operation not permitted): allow the system call"),
    ],
)
def test_samples_that_are_not_allowed_are_said_with_a_way_out(
    error: str, paranoid: int, words: str
) -> None:
    text = explain_sampling(error, paranoid)
    assert words in text
    assert bool(text) is bool(error)


PTRACE, READ_SEARCH, SYSLOG = 1 << 19, 1 << 2, 1 << 34
ONLY_OWN = f"finds only ranks of user {os.getuid()}: for other users it needs "


@pytest.mark.parametrize("syslog", [0, SYSLOG])
@pytest.mark.parametrize(
    ("capabilities", "text"),
    [
        (0, ONLY_OWN + "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"),
        (PTRACE, ONLY_OWN + "CAP_DAC_READ_SEARCH too: both are needed together"),
        (READ_SEARCH, ONLY_OWN + "CAP_SYS_PTRACE too: both are needed together"),
        (PTRACE | READ_SEARCH, ""),
    ],
)
def test_what_a_missing_capability_costs_is_said(
    tmp_path: Path, capabilities: int, syslog: int, text: str
) -> None:
    found = gaps(tmp_path, scope=None, capabilities=capabilities | syslog, py_spy="/bin/py-spy")
    assert found == AgentGaps(process=text)


def test_a_container_of_its_own_is_said(tmp_path: Path) -> None:
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").touch()
    found = gaps(tmp_path, scope=None, capabilities=ALL, py_spy="/bin/py-spy")
    assert found == AgentGaps(process=CONTAINED_HELP)


def test_capabilities_of_a_user_namespace_end_there(tmp_path: Path) -> None:
    own = tmp_path / "proc" / str(os.getpid())
    own.mkdir(parents=True)
    (own / "uid_map").write_text("         0       1000          1\n")
    (own / "status").write_text(f"CapEff:\t{ALL:016x}\n")
    found = find_gaps(Proc(str(tmp_path)), "/bin/py-spy")
    assert "user namespace" in found.process
