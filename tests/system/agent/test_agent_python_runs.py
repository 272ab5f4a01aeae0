"""Which real processes run Python within a time, and which stay in one wait."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.children import ChildRunner
from agent.dumpers.native_places import PythonRuns
from agent.dumpers.perf_clock import find_sampling_error
from agent.dumpers.python_runs_child import MainThread
from agent.procfs import Proc
from tests.system.agent.agent_processes import PROGRAMS, Victim
from tests.waiting import PATIENCE_S, wait_until
from watchtower.drills.compiling import compile_library, find_compiler

SECONDS = 1.5

Start = Callable[..., Victim]

pytestmark = [
    pytest.mark.ptrace,
    pytest.mark.timeout(3 * PATIENCE_S),
    pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler"),
    pytest.mark.skipif(bool(find_sampling_error()), reason=f"perf: {find_sampling_error()}"),
]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libcuda.so.1"
    compile_library(PROGRAMS / "waits.c", path, "-lpthread")
    return path


def test_a_wait_that_ends_is_told_from_one_that_lasts(start: Start, library: Path) -> None:
    steps, spins, sleeps = start(), start(), start()
    for victim, code in (
        (steps, "while True: lib.spin_briefly(), sorted(range(20_000), key=str)"),
        (spins, "lib.spin()"),
        (sleeps, "lib.sleep_in_condition()"),
    ):
        victim.do(f"import ctypes; lib = ctypes.CDLL({str(library)!r})")
        victim.begin(code if victim is not steps else f"exec({code!r})")
    runs = PythonRuns(Proc(), ChildRunner())
    pids = [steps.pid, spins.pid, sleeps.pid]
    # The first samples may still see them begin.
    found = wait_until(
        lambda: (now := runs.find(pids, SECONDS, "")) and not now[spins.pid] and now,
        "one of them only spins",
    )
    assert found == {steps.pid: True, spins.pid: False, sleeps.pid: False}


def test_samples_without_mappings_do_not_show_that_no_python_ran(tmp_path: Path) -> None:
    folder = tmp_path / str(os.getpid())
    folder.mkdir()
    (folder / "stat").write_text(f"{os.getpid()} (python) D 1\n")
    thread = MainThread(str(tmp_path), os.getpid())
    assert wait_until(lambda: not thread.ran() and not thread.is_known, "there are samples")
    thread.close()


def test_a_process_that_cannot_be_sampled_is_not_known(start: Start) -> None:
    ended, lives = start(), start()
    ended.process.kill()
    ended.process.wait()
    runs = PythonRuns(Proc(), ChildRunner())
    assert runs.find([ended.pid, lives.pid], 0.2, "").keys() == {lives.pid}
