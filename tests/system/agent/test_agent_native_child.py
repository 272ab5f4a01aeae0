"""Sampling a thread that gets little CPU, or that has stopped to run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agent.children import ANY_TOOL, ChildRunner, Outcome, Tool
from agent.dumpers import native_child
from agent.dumpers.native_child import (
    LEAST_SAMPLES,
    PAUSES_S,
    STATE,
    Process,
    Thread,
    add_samples,
    sample,
    sample_processes,
)
from agent.dumpers.native_places import (
    PLACES_DEADLINE_S,
    NativePlaces,
    ThreadSamples,
    classify,
)
from agent.dumpers.perf_clock import find_sampling_error
from agent.procfs import Proc
from tests.system.agent.agent_processes import PROGRAMS
from tests.waiting import PATIENCE_S, wait_until
from watchtower.drills.compiling import compile_library, find_compiler

pytestmark = [
    pytest.mark.ptrace,
    pytest.mark.timeout(2 * PATIENCE_S),
    pytest.mark.skipif(bool(find_sampling_error()), reason=f"perf: {find_sampling_error()}"),
]

RARELY_RUNS = """
import time
print(flush=True)
while True:
    end = time.thread_time() + 0.001
    while time.thread_time() < end: pass
    time.sleep(0.3)
"""

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")

IN_STATE_D = """
import ctypes, sys, time
library = ctypes.CDLL(sys.argv[1])
print(flush=True)
library.block_until_input()
time.sleep(600)
"""


@contextlib.contextmanager
def running(program: str) -> Iterator[Process]:
    with started(program) as popen:
        yield Process(popen.pid)


@contextlib.contextmanager
def started(program: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as popen:
        assert popen.stdout is not None
        popen.stdout.readline()
        try:
            yield popen
        finally:
            os.killpg(popen.pid, signal.SIGKILL)


def sampled(process: Process) -> ThreadSamples:
    """Sample the main thread, which was found to run before."""
    thread = Thread(process.pid, process.pid)
    thread.running = True
    add_samples(process, thread, sample([(process, thread)])[thread])
    return ThreadSamples(**thread.answer())


def test_a_thread_with_little_cpu_is_sampled_for_longer():
    with running(RARELY_RUNS) as process:
        found = sampled(process)
    assert found.running
    assert sum(found.leaves.values()) >= LEAST_SAMPLES


def test_with_too_few_samples_its_place_is_where_it_sleeps(monkeypatch):
    monkeypatch.setattr(native_child, "LONGEST_SAMPLING_S", 0.01)
    with running(RARELY_RUNS) as process:
        wait_until(lambda: is_asleep(process.pid), "the program sleeps")
        assert not sampled(process).running


def test_a_thread_that_has_just_been_blocked_is_read_as_blocked(monkeypatch):
    monkeypatch.setattr(native_child, "LONGEST_SAMPLING_S", 0.3)
    with running("import time; print(flush=True); time.sleep(600)") as process:
        wait_until(lambda: is_asleep(process.pid), "the program sleeps")
        found = sampled(process)
        assert not found.running
        assert (place := classify(found)) is not None
        assert place.ends_in_s == pytest.approx(600, abs=PATIENCE_S)


def read_main(pid: int) -> list[Thread]:
    """Return the only thread of a process, as the child answers."""
    threads = dict(sample_processes([pid]))[pid]
    assert threads is not None
    return threads


@needs_compiler
def test_a_thread_that_leaves_state_d_is_read(tmp_path):
    with in_state_d(tmp_path) as popen:
        assert popen.stdin is not None
        popen.stdin.write(b"x")
        threading.Timer(PAUSES_S[1], popen.stdin.flush).start()
        (thread,) = read_main(popen.pid)
    assert thread.failure == ""
    assert thread.leaves


@needs_compiler
def test_a_process_that_stays_in_state_d_is_not_read(tmp_path):
    with in_state_d(tmp_path) as popen:
        (thread,) = read_main(popen.pid)
    assert (thread.failure, thread.run_ns) == (STATE, -1)
    assert not thread.leaves


SLEEPS = "import time; print(flush=True); time.sleep(600)"
HANGS = 2**22
"""A number that no process has."""

LATE_S = 1.0
"""Seconds by which a busy machine may start a child late."""


class Runner(ChildRunner):
    """A runner that notes when each child has to end."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def run(
        self,
        command: Sequence[str],
        deadline_s: float,
        owner: str = "",
        tool: Tool = ANY_TOOL,
    ) -> Outcome:
        self.ends.append(time.monotonic() + deadline_s)
        return super().run(command, deadline_s, owner, tool)


def test_a_process_that_hangs_the_child_costs_no_other_one_its_place(tmp_path):
    runner = Runner()
    with started(SLEEPS) as first, started(SLEEPS) as last:
        for popen in (first, last):
            make_folder(tmp_path / "proc").joinpath(str(popen.pid)).symlink_to(f"/proc/{popen.pid}")
        # Opening a pipe that no process writes to hangs, as reading locked mappings does.
        os.mkfifo(make_folder(tmp_path / f"proc/{HANGS}/task/{HANGS}") / "stat")
        began = time.monotonic()
        places = NativePlaces(Proc(str(tmp_path)), runner).sample([first.pid, HANGS, last.pid], "")
        assert places.keys() == {first.pid, last.pid}
    assert len(runner.ends) == 2
    assert max(runner.ends) < began + PLACES_DEADLINE_S + LATE_S, "the children have one deadline"


def make_folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def in_state_d(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    library = folder / "waits.so"
    compile_library(PROGRAMS / "waits.c", library, "-lpthread")
    with started(IN_STATE_D, str(library)) as popen:
        wait_until(lambda: read_state(popen.pid) == "D", "the program is in state D")
        yield popen


def read_state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def is_asleep(pid: int) -> bool:
    with open(f"/proc/{pid}/syscall") as file:
        return file.read().split()[0] not in ("running", "0")
