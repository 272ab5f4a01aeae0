"""A tool of the agent that stops a process is not reported as a debugger; another tool is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from agent.collectors.process import OpenFiles, read_state
from agent.dumpers.kernel_state import read_kernel_wait
from agent.procfs import Proc, find_tracer
from tests.agent.agent_scene import PATIENCE_S, wait_until
from tests.system.agent.agent_processes import Victim
from watchtower.wire.report import ProcessState

PROC = Proc()
HOLD = (
    "import ctypes, sys\n"
    "libc = ctypes.CDLL(None)\n"
    "assert libc.ptrace(0x4206, {pid}, 0, 0) == 0\n"  # PTRACE_SEIZE
    "assert libc.ptrace(0x4207, {pid}, 0, 0) == 0\n"  # PTRACE_INTERRUPT
    "print('held', flush=True)\n"
    "sys.stdin.read()\n"
)
ANOTHER = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', {code!r}])\n"
"""The tracer is a child of this process, not of the agent."""

Hold = Callable[[str], None]

pytestmark = [
    pytest.mark.ptrace,
    pytest.mark.usefixtures("ptrace"),
    pytest.mark.timeout(2 * PATIENCE_S),
]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Run code that holds a process until the test ends."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str) -> None:
        tool = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(tool)
        assert tool.stdout is not None
        assert tool.stdout.readline() == "held\n"

    yield run
    for tool in started:
        tool.communicate(timeout=PATIENCE_S)


def state_of(pid: int) -> str:
    stat = PROC.stat(pid)
    return stat.state if stat is not None else ""


def test_a_process_that_a_tool_of_the_agent_stops_has_no_known_state(start, hold: Hold) -> None:
    victim: Victim = start(RANK="0")
    hold(HOLD.format(pid=victim.pid))
    wait_until(lambda: state_of(victim.pid) == "t", "it is stopped")
    assert find_tracer(PROC, victim.pid)
    files = OpenFiles(PROC, victim.pid)
    assert read_state(files, files.stat())[0] is ProcessState.OTHER
    kernel = read_kernel_wait(PROC, victim.pid)
    assert (kernel.state, kernel.tracer_pid, kernel.tracer_name) == (ProcessState.OTHER, 0, "")


def test_a_process_that_a_debugger_stops_is_traced(start, hold: Hold) -> None:
    victim: Victim = start(RANK="0")
    hold(ANOTHER.format(code=HOLD.format(pid=victim.pid)))
    wait_until(lambda: state_of(victim.pid) == "t", "it is stopped")
    files = OpenFiles(PROC, victim.pid)
    assert read_state(files, files.stat())[0] is ProcessState.TRACED
    kernel = read_kernel_wait(PROC, victim.pid)
    assert kernel.state is ProcessState.TRACED
    assert kernel.tracer_pid == find_tracer(PROC, victim.pid) != 0
    assert kernel.tracer_name
