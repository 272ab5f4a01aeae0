"""Native functions by real py-spy of real processes, and that no process stays stopped."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.children import ChildRunner
from agent.dumpers.native_functions import (
    FORBIDDEN_HELP,
    FROZEN_HELP,
    PYTHON_HELP,
    Moment,
    NativeFunctionReader,
    find_obstacle,
)
from agent.dumpers.native_places import NativePlaces
from agent.dumpers.python_stacks import PythonStacks, find_py_spy
from agent.dumps.contents import Target
from agent.dumps.round import RoundTaker
from agent.procfs import Proc, parse_fields
from tests.agent.agent_scene import PATIENCE_S, wait_until
from tests.system.agent.agent_processes import PROGRAMS, Victim
from tests.system.agent.test_agent_freezer import FREEZER, freezer  # noqa: F401 - a fixture
from watchtower.drills.compiling import compile_library, find_compiler
from watchtower.wire.dumps import NativeFunctions, RankDump

Start = Callable[..., Victim]
PROC = Proc()
IN_LIBRARY = "import ctypes; ctypes.CDLL({library!r}).{function}()"
MANY_THREADS = (
    "[threading.Thread(target=sleep_in_a_loader, daemon=True).start() for _ in range(200)]"
)
SEIZE = "import ctypes; ctypes.CDLL(None).ptrace(0x4206, {}, 0, 0)"
"""PTRACE_SEIZE, as strace begins: the process goes on."""

STOPS = 200
"""Times that a process is stopped by py-spy, until one of the stops is seen."""

pytestmark = [
    pytest.mark.ptrace,
    pytest.mark.usefixtures("ptrace"),
    pytest.mark.skipif(not find_py_spy(), reason="py-spy is not installed: pip install py-spy"),
    pytest.mark.timeout(4 * PATIENCE_S),
]
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")


@pytest.fixture
def runner() -> ChildRunner:
    return ChildRunner()


@pytest.fixture
def library(tmp_path: Path) -> str:
    """A library with the name of NCCL's, in which a thread waits."""
    path = tmp_path / "libnccl.so.2"
    compile_library(PROGRAMS / "waits.c", path, "-lpthread")
    return str(path)


def state_of(pid: int) -> str:
    stat = PROC.stat(pid)
    return stat.state if stat is not None else ""


def start_time_of(pid: int) -> int:
    stat = PROC.stat(pid)
    assert stat is not None
    return stat.start_time


def tracer_of(pid: int) -> str:
    return parse_fields(PROC.try_read(pid, "status"))["TracerPid"]


def read(runner: ChildRunner, pid: int, **options: bool) -> NativeFunctions:
    """Read the functions of a process as the agent does, and return them."""
    places = NativePlaces(PROC, runner)
    reader = NativeFunctionReader(PROC, runner, find_py_spy(), places=places, **options)
    reader.read(pid, start_time_of(pid), "uid:0")
    found = reader.recall(pid, start_time_of(pid), Moment())
    assert found is not None
    return found


def block(victim: Victim, library: str, function: str, state: str) -> None:
    victim.begin("print('begun', flush=True); " + IN_LIBRARY.format(**locals()))
    victim.wait_for("begun")
    wait_until(lambda: state_of(victim.pid) == state, "it is in the library")


@needs_compiler
def test_functions_of_a_thread_that_waits_in_a_library(start, runner, library):
    victim = start(RANK="0")
    block(victim, library, "sleep_in_condition", "S")
    found = read(runner, victim.pid)
    assert not found.failure
    assert found.is_whole
    named = {frame.file: frame.function for frame in found.calls}
    assert named["libnccl.so.2"] == "sleep_in_condition"
    assert any("pthread_cond_wait" in frame.function for frame in found.calls[:2])
    assert (state_of(victim.pid), tracer_of(victim.pid)) == ("S", "0")


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_functions_with_the_symbols_of_torch_on_the_stack(start, runner):
    victim = start(RANK="0")
    victim.do("import ctypes, torch")
    victim.do("x = torch.ones(3, requires_grad=True)")
    victim.do("handle = x.register_hook(lambda gradient: ctypes.CDLL(None).sleep(1000))")
    victim.begin("print('begun', flush=True); (2 * x).sum().backward()")
    victim.wait_for("begun")
    wait_until(lambda: b"nanosleep" in PROC.try_read(victim.pid, "wchan"), "it sleeps")
    found = read(runner, victim.pid)
    assert not found.failure
    assert found.is_whole
    assert "sleep" in found.calls[1].function or "sleep" in found.calls[0].function


@needs_compiler
def test_callers_of_a_thread_that_spins_are_not_invented(start, runner, library):
    victim = start(RANK="0")
    block(victim, library, "spin", "R")
    found = read(runner, victim.pid)
    assert not found.failure
    names = {frame.file for frame in found.calls}
    assert found.is_whole == ("libnccl.so.2" in names)
    assert names <= {"[vdso]", "libc.so.6", "libnccl.so.2"} or found.is_whole


@needs_compiler
def test_both_rounds_after_the_read_contain_the_functions(start, runner, library):
    victim = start(RANK="0")
    block(victim, library, "sleep_in_condition", "S")
    taker = RoundTaker(
        PROC,
        PythonStacks(runner, find_py_spy()),
        lambda _: None,
        functions=NativeFunctionReader(PROC, runner, find_py_spy()),
    )
    target = Target(
        rank=0, pid=victim.pid, start_time=start_time_of(victim.pid), read_page=lambda: None
    )

    def take() -> RankDump:
        (dump,) = taker.take([target], deadline=time.monotonic() + PATIENCE_S).ranks
        return dump

    assert take().functions is None
    taker.read_functions([target], deadline=time.monotonic() + PATIENCE_S, owner="uid:0")
    first, second = take().functions, take().functions
    assert first is not None
    assert second is not None
    assert first.calls == second.calls != ()
    assert 0 < first.age_s < second.age_s


def test_a_process_that_runs_python_is_not_attached_to(start, runner):
    victim = start(RANK="0")
    victim.begin("print('begun', flush=True)\nwhile True: pass")
    victim.wait_for("begun")
    assert read(runner, victim.pid).failure == PYTHON_HELP


def test_a_stopped_process_is_not_attached_to(start, runner):
    victim = start(RANK="0")
    os.kill(victim.pid, signal.SIGSTOP)
    wait_until(lambda: state_of(victim.pid) == "T", "it is stopped")
    assert "state T" in read(runner, victim.pid).failure
    assert state_of(victim.pid) == "T"


def test_a_process_that_is_stopped_while_it_is_sampled_is_not_attached_to(start):
    victim = start(RANK="0")

    class Runner(ChildRunner):
        """Runs every child, and stops the process after the samples of native places."""

        def run(self, command, *limits):
            outcome = super().run(command, *limits)
            if "agent.dumpers.native_child" in command:
                os.kill(victim.pid, signal.SIGSTOP)
                wait_until(lambda: state_of(victim.pid) == "T", "it is stopped")
            return outcome

    assert "state T" in read(Runner(), victim.pid).failure
    assert (state_of(victim.pid), tracer_of(victim.pid)) == ("T", "0")


@needs_compiler
def test_a_process_with_a_thread_in_state_d_is_not_attached_to(start, runner, library):
    victim = start(RANK="0")
    code = IN_LIBRARY.format(library=library, function="block_in_kernel")
    victim.do(f"threading.Thread(target=lambda: exec({code!r})).start()")
    wait_until(lambda: "state D" in find_obstacle(PROC, victim.pid), "a thread is in state D")
    assert "state D" in read(runner, victim.pid).failure


def test_a_frozen_process_is_not_attached_to(start, runner, freezer: Path):  # noqa: F811
    assert freezer.parent == FREEZER
    victim = start(RANK="0")
    (freezer / "cgroup.procs").write_text(str(victim.pid))
    (freezer / "freezer.state").write_text("FROZEN")
    wait_until(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n", "it is frozen")
    assert read(runner, victim.pid).failure == FROZEN_HELP


def test_a_process_that_another_tool_traces_is_not_attached_to(start, runner):
    victim, tracer = start(RANK="0"), start(RANK="1")
    tracer.do(SEIZE.format(victim.pid))
    assert tracer_of(victim.pid) == str(tracer.pid)
    found = read(runner, victim.pid)
    tracer.close()  # it would have to reap the other one, too
    assert "another tool traces it" in found.failure
    assert state_of(victim.pid) == "S"


def test_an_agent_may_be_forbidden_to_stop_processes(start, runner):
    assert read(runner, start(RANK="0").pid, is_allowed=False).failure == FORBIDDEN_HELP


def test_another_process_with_the_same_number_is_not_attached_to(start, runner):
    victim = start(RANK="0")
    reader = NativeFunctionReader(PROC, runner, find_py_spy())
    reader.read(victim.pid, start_time_of(victim.pid) + 1, "uid:0")
    found = reader.recall(victim.pid, start_time_of(victim.pid) + 1, Moment())
    assert found is not None
    assert found.failure


def kill_during_stop(pid: int) -> bool:
    """Kill a py-spy that has just stopped a process; return whether it still had stopped it."""
    command = [find_py_spy(), "dump", "--native", "--pid", str(pid)]
    tool = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while tool.poll() is None and state_of(pid) != "t":
        pass
    with contextlib.suppress(ProcessLookupError):
        os.kill(tool.pid, signal.SIGSTOP)
    is_stopped = state_of(pid) == "t" and tracer_of(pid) == str(tool.pid)
    tool.kill()
    tool.wait(PATIENCE_S)
    return is_stopped


def test_a_killed_py_spy_leaves_no_process_stopped(start):
    victim = start(RANK="0")
    victim.do(MANY_THREADS)
    assert any(kill_during_stop(victim.pid) for _ in range(STOPS))
    wait_until(lambda: find_obstacle(PROC, victim.pid) == "", "no thread is stopped")
    assert victim.do("print('it goes on')") == "it goes on"


@needs_compiler
def test_a_py_spy_killed_before_its_stop_took_effect_leaves_no_stop_behind(start, library):
    """It enters state D between the check and the stop, and py-spy waits until it is killed."""
    victim = start(RANK="0")
    victim.begin(IN_LIBRARY.format(library=library, function="block_in_kernel"))
    wait_until(lambda: state_of(victim.pid) == "D", "it is in state D")
    command = [find_py_spy(), "dump", "--native", "--pid", str(victim.pid)]
    tool = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: tracer_of(victim.pid) == str(tool.pid), "py-spy has attached")
    tool.kill()
    tool.wait(PATIENCE_S)
    victim.wait_for("done")
    assert victim.do("print('it goes on')") == "it goes on"


def test_the_deadline_ends_a_py_spy_that_hangs(start, runner, tmp_path, monkeypatch):
    victim = start(RANK="0")
    tool = tmp_path / "py-spy"
    tool.write_text('#!/bin/sh\n[ "$1" = --version ] && exec echo py-spy 0.4.3\nexec sleep 600\n')
    tool.chmod(0o755)
    monkeypatch.setattr("agent.dumpers.native_functions.FUNCTIONS_DEADLINE_S", 0.3)
    reader = NativeFunctionReader(PROC, runner, str(tool))
    reader.read(victim.pid, start_time_of(victim.pid), "uid:0")
    found = reader.recall(victim.pid, start_time_of(victim.pid), Moment())
    assert found is not None
    assert "was killed" in found.failure
    assert threading.active_count() < 50


def test_a_py_spy_that_stops_by_signals_is_refused(start, runner, tmp_path):
    victim = start(RANK="0")
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\necho py-spy 0.3.14\n")
    tool.chmod(0o755)
    reader = NativeFunctionReader(PROC, runner, str(tool))
    reader.read(victim.pid, start_time_of(victim.pid), "uid:0")
    found = reader.recall(victim.pid, start_time_of(victim.pid), Moment())
    assert found is not None
    assert "0.3.14" in found.failure


def named(order: dict, **changes: object) -> dict:
    return {"job": "llama", "expires_s": 10.0, "ranks": [1], "native": True, **order, **changes}


def test_an_order_reads_only_the_rank_that_it_names(ranks, run_agent, tower):
    """As the tower gives it. An order for another owner's job of that name is refused."""
    agent = run_agent(tower.url)
    wait_until(lambda: tower.reports and len(tower.reports[-1]["ranks"]) == 2, "both are reported")
    owner = tower.reports[-1]["ranks"][0]["owner"]
    tower.orders = [named({"id": "o1"}, owner="uid:77777")]
    wait_until(lambda: agent.says("order o1 is refused"), "the other owner is refused")
    tower.orders = [named({"id": "o2"}, owner=owner)]
    wait_until(lambda: len(tower.dumps) == 2, "both rounds arrive")
    for batch in tower.dumps:
        (dump,) = batch["ranks"]
        assert (dump["rank"], batch["reason"], batch["glance"]) == (1, "o2", False)
        assert dump["functions"]["calls"]
        assert not dump["functions"]["failure"]
    assert all(state_of(rank.pid) == "S" for rank in ranks)


def test_an_agent_with_the_option_reads_none(ranks, run_agent, tower):
    run_agent(tower.url, "--no-native-functions")
    wait_until(lambda: tower.reports and len(tower.reports[-1]["ranks"]) == 2, "both are reported")
    tower.orders = [named({"id": "o1"})]
    wait_until(lambda: len(tower.dumps) == 2, "both rounds arrive")
    for batch in tower.dumps:
        assert batch["ranks"][0]["functions"]["failure"] == FORBIDDEN_HELP
        assert batch["ranks"][0]["threads"]
