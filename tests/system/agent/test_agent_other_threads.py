"""A program that trains in a thread: what this thread does in native code is in its dump."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.children import ChildRunner
from agent.dumpers.dumper import Target
from agent.dumpers.perf_clock import find_sampling_error
from agent.dumpers.python_stacks import PythonStacks, find_py_spy
from agent.dumps.round import make_taker
from agent.procfs import Proc
from tests.system.agent.agent_processes import PROGRAMS, Victim
from tests.waiting import wait_until
from watchtower.drills.compiling import compile_library, find_compiler
from watchtower.wire.dumps import NativeKind, ThreadDump
from watchtower.wire.report import ProcessState

pytestmark = [
    pytest.mark.ptrace,
    pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler"),
    pytest.mark.skipif(bool(find_sampling_error()), reason=f"perf: {find_sampling_error()}"),
]

TRAINS = "ctypes.CDLL({library!r}).{function}()"
PROGRAM = """
import ctypes, os, threading
thread = threading.Thread(target=lambda: {trains}, name="trainer")
thread.start()
print("begun", flush=True)
thread.join()
"""


def begin(victim: Victim, folder: Path, trains: str) -> Callable[[], ThreadDump | None]:
    """Train in a thread of this process. Returns a function that dumps this thread."""
    # A file of the user's own: what is given to exec has none.
    program = folder / "main.py"
    program.write_text(PROGRAM.format(trains=trains))
    victim.begin(f"import runpy; runpy.run_path({str(program)!r})")
    victim.wait_for("begun")
    proc, runner = Proc(), ChildRunner()
    stacks = PythonStacks(runner, find_py_spy())
    taker = make_taker(proc, runner, stacks, lambda _: None, read_source=False)
    stat = Proc().stat(victim.pid)
    assert stat is not None
    target = Target(rank=0, pid=victim.pid, start_time=stat.start_time, read_page=lambda: None)

    def find_trainer() -> ThreadDump | None:
        (dump,) = taker.take([target], deadline=time.monotonic() + 10).ranks
        found = [each for each in dump.threads if each.name == "trainer" and each.native]
        assert dump.native is None or dump.native.kind is not NativeKind.DEVICE_WAIT
        return found[0] if found else None

    return find_trainer


@pytest.mark.parametrize("function", ["spin", "do_yield", "sleep_in_condition"])
def test_a_thread_that_main_waits_for_is_found_in_its_wait_for_the_device(
    start: Callable[..., Victim], tmp_path: Path, function: str
) -> None:
    library = tmp_path / "libcuda.so.1"
    compile_library(PROGRAMS / "waits.c", library, "-lpthread")
    trains = TRAINS.format(library=str(library), function=function)
    find_trainer = begin(start(RANK="0", WORLD_SIZE="1"), tmp_path, trains)
    # A thread that runs may get too little CPU for enough samples, where other tests run.
    trainer = wait_until(find_trainer, "the place of the thread")
    assert trainer.native is not None
    assert trainer.native.kind is NativeKind.DEVICE_WAIT


def test_the_kernel_shows_what_such_a_thread_waits_for(
    start: Callable[..., Victim], tmp_path: Path
) -> None:
    fifo = tmp_path / "shard"
    os.mkfifo(fifo)
    find_trainer = begin(
        start(RANK="0", WORLD_SIZE="1"), tmp_path, f"os.read(os.open({str(fifo)!r}, os.O_RDWR), 1)"
    )

    def find_read() -> ThreadDump | None:
        trainer = find_trainer()
        return trainer if trainer and trainer.kernel and trainer.kernel.target else None

    kernel = wait_until(find_read, "the read of the thread").kernel
    assert (kernel.syscall, kernel.target) == ("read", str(fifo))
    assert kernel.state is ProcessState.SLEEPING
