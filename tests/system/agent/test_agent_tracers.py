"""A process that a debugger stops is reported as traced, with the name of the debugger."""

from __future__ import annotations

import subprocess
import sys

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

pytestmark = [
    pytest.mark.ptrace,
    pytest.mark.usefixtures("ptrace"),
    pytest.mark.timeout(2 * PATIENCE_S),
]


def state_of(pid: int) -> str:
    stat = PROC.stat(pid)
    return stat.state if stat is not None else ""


def test_a_process_that_a_debugger_stops_is_traced(start) -> None:
    victim: Victim = start(RANK="0")
    debugger = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(pid=victim.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert debugger.stdout is not None
        assert debugger.stdout.readline() == "held\n"
        wait_until(lambda: state_of(victim.pid) == "t", "it is stopped")
        files = OpenFiles(PROC, victim.pid)
        assert read_state(files, files.stat())[0] is ProcessState.TRACED
        kernel = read_kernel_wait(PROC, victim.pid)
        assert kernel.state is ProcessState.TRACED
        assert kernel.tracer_pid == find_tracer(PROC, victim.pid) != 0
        assert kernel.tracer_name
    finally:
        debugger.communicate(timeout=PATIENCE_S)
