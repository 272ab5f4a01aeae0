"""Collective records and source of another user's rank, read with the rights of the unit."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.system.e2e.other_users import (
    AGENT_USER,
    JOB_USER,
    become,
    needs_other_users,
    unit_capabilities,
)

pytestmark = [pytest.mark.e2e, needs_other_users]

ASKS = """
import sys, time
from agent.dumpers.flight_recorder import ask_recorders
from agent.dumpers.kernel_state import read_kernel_wait
from agent.dumpers.source_loops import SourceLoops
from agent.children import ChildRunner
from agent.procfs import Proc
from watchtower.wire.stacks import Frame, make_stack

pid, program, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
proc, deadline = Proc(), time.monotonic() + 30
asked = ask_recorders(proc, pid, path, read_kernel_wait(proc, pid), deadline)
print(len(asked.records), asked.failure)
stack = make_stack((Frame(function="hang", file=program, line=30),))
(filled,) = SourceLoops(proc, ChildRunner()).fill([(stack, pid)], deadline)
print(filled.frames[0].loops)
"""


def test_records_and_loops_need_no_more_than_the_units_rights(
    shared_folder: Path, shared_python: Path
) -> None:
    home = shared_folder / "job"
    home.mkdir()
    program = home / "rank.py"
    shutil.copy(Path(__file__).parent / "other_users_rank.py", program)
    for path, mode in ((program, 0o600), (home, 0o711)):
        path.chmod(mode)
        os.chown(path, JOB_USER, JOB_USER)
    words = [*become(JOB_USER, []), str(shared_python), str(program), str(home / "records")]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as rank:
        try:
            assert rank.stdout is not None
            assert rank.stdout.readline() == b"ready\n"
            paths = [str(rank.pid), str(program), str(home / "records" / "socket")]
            assert ask(shared_python, unit_capabilities(), paths) == ["2 ", "(29,)"]
            text, loops = ask(shared_python, [], paths)
            assert text.startswith("0 the agent may not connect")
            assert loops == "()"
        finally:
            rank.kill()


def ask(python: Path, capabilities: list[str], paths: list[str]) -> list[str]:
    """The collective logs that an agent with these capabilities gets."""
    words = [*become(AGENT_USER, capabilities), str(python), "-I", "-c", ASKS, *paths]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, cwd="/")
    return done.stdout.splitlines()
