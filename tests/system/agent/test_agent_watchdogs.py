"""Whether the watchdog thread of torch of a real process is blocked in a device library."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.children import ChildRunner
from agent.dumpers.dumper import Target
from agent.dumpers.python_stacks import PythonStacks, find_py_spy
from agent.dumpers.watchdogs import WATCHDOG
from agent.dumps.round import RoundTaker, make_taker
from agent.procfs import Proc
from tests.system.agent.agent_processes import PROGRAMS, Victim
from tests.waiting import wait_until
from watchtower.drills.compiling import compile_library, find_compiler
from watchtower.evidence.native import is_watchdog_blocked
from watchtower.wire.dumps import NativeKind, RankDump

pytestmark = pytest.mark.ptrace

PROGRAM = """
import ctypes, threading, time
def watch():
    ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0)
    print("begun", flush=True)
    {watches}
threading.Thread(target=watch, daemon=True).start()
time.sleep(10_000)
"""


def make_reader() -> RoundTaker:
    proc, runner = Proc(), ChildRunner()
    stacks = PythonStacks(runner, find_py_spy())
    return make_taker(proc, runner, stacks, lambda _: None, read_source=False)


def dump(victim: Victim, reader: RoundTaker) -> RankDump:
    stat = Proc().stat(victim.pid)
    assert stat is not None
    target = Target(rank=0, pid=victim.pid, start_time=stat.start_time, read_page=lambda: None)
    return reader.take([target], deadline=time.monotonic() + 10).ranks[0]


def begin(victim: Victim, watches: str) -> None:
    """Start a thread with the name of torch's watchdog that does this."""
    victim.begin(f"exec({PROGRAM.format(name=WATCHDOG.encode(), watches=watches)!r})")
    victim.wait_for("begun")


@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
def test_a_watchdog_that_is_blocked_in_the_driver_is_seen(
    start: Callable[..., Victim], tmp_path: Path
) -> None:
    library = tmp_path / "libcuda.so.1"
    compile_library(PROGRAMS / "waits.c", library, "-lpthread")
    victim, reader = start(RANK="0", WORLD_SIZE="1"), make_reader()
    begin(victim, f"ctypes.CDLL({str(library)!r}).sleep_in_condition()")
    wait_until(lambda: dump(victim, reader).watchdog, "the place of the watchdog")
    dumps = [dump(victim, reader), dump(victim, reader)]
    assert dumps[1].watchdog is not None
    assert dumps[1].watchdog.kind is NativeKind.DEVICE_WAIT
    assert is_watchdog_blocked(dumps)


def test_a_watchdog_that_sleeps_between_its_questions_is_not(start: Callable[..., Victim]) -> None:
    victim, reader = start(RANK="0", WORLD_SIZE="1"), make_reader()
    begin(victim, "time.sleep(10_000)")
    dumps = [dump(victim, reader), dump(victim, reader)]
    assert [each.watchdog for each in dumps] == [None, None]
