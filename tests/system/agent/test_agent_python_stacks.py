"""Real py-spy on real processes, and what is said when it cannot."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.children import ChildRunner, Outcome, Tool
from agent.dumpers.dumper import Target
from agent.dumpers.kernel_state import read_kernel_wait
from agent.dumpers.python_stacks import PY_SPY, PythonStacks, find_py_spy
from agent.procfs import Proc
from tests.agent.agent_scene import a_taker, a_view
from tests.system.agent.agent_processes import Victim
from tests.waiting import PATIENCE_S, wait_until
from watchtower.wire.dumps import FailureKind, RankDump
from watchtower.wire.stacks import Stack

Start = Callable[..., Victim]


@pytest.fixture
def runner() -> ChildRunner:
    return ChildRunner()


@pytest.fixture
def stacks(runner: ChildRunner) -> PythonStacks:
    if not find_py_spy():
        pytest.skip("py-spy is not installed: pip install py-spy")
    return PythonStacks(runner, find_py_spy())


def a_target(victim: Victim, rank: int = 0) -> Target:
    stat = Proc().stat(victim.pid)
    assert stat is not None
    return Target(
        rank=rank, pid=victim.pid, start_time=stat.start_time, read_page=lambda: a_view(step=12)
    )


def take(
    stacks: PythonStacks, *targets: Target, wait_s: float = PATIENCE_S
) -> tuple[list[RankDump], dict[str, Stack], list[str]]:
    outcomes: list[str] = []
    taker = a_taker(Proc(), stacks, outcomes.append)
    taken = taker.take(targets, deadline=time.monotonic() + wait_s)
    return list(taken.ranks), {stack.digest: stack for stack in taken.stacks}, outcomes


def waits_in(pid: int) -> str:
    return read_kernel_wait(Proc(), pid).syscall


def functions(stack: Stack) -> list[str]:
    return [frame.function for frame in stack.frames]


pytestmark = [pytest.mark.ptrace, pytest.mark.usefixtures("ptrace")]


def test_a_rank_that_hangs_in_a_function_shows_it(start: Start, stacks: PythonStacks) -> None:
    victim = start(RANK="0")
    victim.begin("sleep_in_a_loader()")
    wait_until(lambda: "nanosleep" in Proc().try_read(victim.pid, "wchan").decode(), "it sleeps")
    (dump,), found, outcomes = take(stacks, a_target(victim))
    assert dump.failure is None
    assert dump.step == 12
    main = dump.threads[0]
    assert main.main
    assert main.name == "MainThread"
    assert functions(found[main.digest])[0] == "sleep_in_a_loader"
    assert functions(found[main.digest])[-1] == "<module>"
    assert found[main.digest].frames[0].file.endswith("programs/obeys.py")
    assert not found[main.digest].frames[0].library
    assert outcomes == ["ok"]


def test_two_ranks_in_one_place_share_a_stack(start: Start, stacks: PythonStacks) -> None:
    victims = [start(RANK=str(rank)) for rank in range(2)]
    for victim in victims:
        wait_until(victim.is_asleep, "it waits for orders")
    dumps, found, _ = take(stacks, *(a_target(each, i) for i, each in enumerate(victims)))
    assert [dump.rank for dump in dumps] == [0, 1]
    assert dumps[0].threads[0].digest == dumps[1].threads[0].digest
    assert len(found) == 1


def test_a_stopped_rank_is_dumped_too(start: Start, stacks: PythonStacks) -> None:
    victim = start(RANK="0")
    victim.begin("sleep_in_a_loader()")
    wait_until(lambda: "nanosleep" in Proc().try_read(victim.pid, "wchan").decode(), "it sleeps")
    os.kill(victim.pid, signal.SIGSTOP)
    wait_until(lambda: (s := Proc().stat(victim.pid)) and s.state == "T", "it is stopped")
    (dump,), found, _ = take(stacks, a_target(victim))
    assert dump.kernel.state.value == "T"
    assert functions(found[dump.threads[0].digest])[0] == "sleep_in_a_loader"


def test_a_worker_is_dumped_on_its_own(start: Start, stacks: PythonStacks) -> None:
    victim = start(RANK="0")
    victim.do("pid = os.fork(); pid or sleep_in_a_loader()")
    victim.do("other = subprocess.Popen(['sleep', '600'])")
    worker, other = victim.do("print(pid, other.pid)").split()
    wait_until(lambda: b"nanosleep" in Proc().try_read(int(worker), "wchan"), "it sleeps")
    wait_until(lambda: waits_in(int(other)).endswith("nanosleep"), "the other one sleeps too")
    (dump,), found, _ = take(stacks, a_target(victim))
    children = {child.pid: child for child in dump.children}
    assert set(children) == {int(worker), int(other)}
    python = children[int(worker)]
    assert functions(found[python.threads[0].digest])[0] == "sleep_in_a_loader"
    assert python.command.startswith("python")
    plain = children[int(other)]
    assert (plain.threads, plain.failure) == ((), None)
    assert plain.kernel.syscall.endswith("nanosleep")


def test_who_holds_the_gil_is_told(start: Start, stacks: PythonStacks) -> None:
    victim = start(RANK="0")
    victim.begin("spin()")
    (dump,), found, _ = take(stacks, a_target(victim))
    assert functions(found[dump.threads[0].digest])[0] == "spin"
    assert dump.threads[0].active


def test_a_process_that_ended_is_a_failure_with_a_name(start: Start, stacks: PythonStacks) -> None:
    victim = start(RANK="0")
    target = a_target(victim)
    victim.close()
    (dump,), _, outcomes = take(stacks, target)
    assert dump.failure is not None
    assert dump.failure.kind is FailureKind.GONE
    assert outcomes == ["gone"]


def test_another_process_with_the_same_pid_is_never_dumped(
    start: Start, stacks: PythonStacks
) -> None:
    victim = start(RANK="0")
    real = a_target(victim)
    stale = Target(rank=0, pid=real.pid, start_time=real.start_time - 1, read_page=real.read_page)
    (dump,), _, _ = take(stacks, stale)
    assert dump.failure is not None
    assert dump.failure.kind is FailureKind.GONE
    assert dump.threads == ()


def test_a_program_that_is_not_python_is_unsupported(start: Start, stacks: PythonStacks) -> None:
    script = "echo ready; while read line; do :; done"
    (dump,), _, _ = take(stacks, a_target(start(["/bin/sh", "-c", script])))
    assert dump.failure is not None
    assert dump.failure.kind is FailureKind.UNSUPPORTED


def test_without_py_spy_the_kernel_still_speaks(start: Start, runner: ChildRunner) -> None:
    victim = start(RANK="0")
    wait_until(victim.is_asleep, "it waits for orders")
    (dump,), _, _ = take(PythonStacks(runner, ""), a_target(victim))
    assert dump.failure is not None
    assert dump.failure.kind is FailureKind.MISSING_TOOL
    assert "pip install" in dump.failure.help_text
    assert dump.kernel.state.value == "S"


def a_tool(path: Path, script: str) -> str:
    path.write_text(f"#!{sys.executable}\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_no_time_left_is_a_timeout(start: Start, stacks: PythonStacks) -> None:
    (dump,), _, _ = take(stacks, a_target(start(RANK="0")), wait_s=-1.0)
    assert dump.failure is not None
    assert dump.failure.kind is FailureKind.TIMEOUT


def test_a_tool_that_hangs_is_killed_at_its_deadline(tmp_path: Path, runner: ChildRunner) -> None:
    tool = a_tool(
        tmp_path / "hangs",
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.fork()\ntime.sleep(600)",
    )
    began = time.monotonic()
    outcome = runner.run([tool], 0.5)
    assert outcome.code is None
    assert time.monotonic() - began < 5


def test_a_tool_is_killed_with_its_children_when_the_agent_stops(
    tmp_path: Path, runner: ChildRunner
) -> None:
    tool = a_tool(tmp_path / "hangs", "import os, time\nos.fork()\ntime.sleep(600)")
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(runner.run([tool], 60.0)))
    thread.start()
    wait_until(lambda: runner._running, "the tool runs")
    runner.stop()
    thread.join(PATIENCE_S)
    assert outcomes[0].code is None
    assert runner.run([tool], 60.0).code is None


def test_a_tool_that_prints_without_end_is_killed(tmp_path: Path) -> None:
    tool = a_tool(tmp_path / "prints", "while True: print('x' * 10000)")
    outcome = ChildRunner().run([tool], PATIENCE_S, tool=Tool(max_output_bytes=100_000))
    assert outcome.code is None
    assert len(outcome.output) < 1_000_000


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A control group that stops what enters it so that not even SIGKILL is heard."""
    group = Path("/sys/fs/cgroup/freezer") / f"watchtower-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup v1 freezer for this user: {error}")
    yield group
    (group / "freezer.state").write_text("THAWED")
    wait_until(lambda: not (group / "tasks").read_text(), "what was frozen is gone")
    group.rmdir()


def test_tools_that_cannot_be_killed_are_not_started_without_end(
    tmp_path: Path, freezer: Path, runner: ChildRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.children.REAP_S", 0.1)
    monkeypatch.setattr("agent.children.MAX_LEFT_BEHIND", 4)
    tool = tmp_path / "freezes"
    tool.write_text(
        f"#!/bin/sh\necho $$ > {freezer}/tasks\necho FROZEN > {freezer}/freezer.state\nsleep 600\n"
    )
    tool.chmod(0o755)
    for _ in range(2):
        began = time.monotonic()
        assert runner.run([str(tool)], 0.5, tool=PY_SPY).code is None
        assert time.monotonic() - began < PATIENCE_S / 2
    dump = PythonStacks(runner, str(tool)).dump(7)
    assert dump.failure is not None
    assert "2 earlier tools hang and cannot be killed" in dump.failure.help_text
    assert runner.run(["true"], PATIENCE_S, "uid:2000", PY_SPY).code == 0  # another owner's
    assert runner.run(["true"], PATIENCE_S, tool=Tool(name="other")).code == 0  # of another kind
    (freezer / "freezer.state").write_text("THAWED")
    wait_until(lambda: not (freezer / "tasks").read_text(), "they die")
    assert runner.run(["true"], PATIENCE_S, tool=PY_SPY).code == 0


def test_a_torn_dump_is_tried_again_and_kept_when_it_stays_torn(
    tmp_path: Path, runner: ChildRunner
) -> None:
    tool = a_tool(
        tmp_path / "torn",
        "import json, os, time\n"
        "frames = [{'name': str(time.monotonic_ns()), 'filename': 'x.py', 'line': 1}]\n"
        "print(json.dumps([{'os_thread_id': 7, 'frames': frames}]))",
    )
    dump = PythonStacks(runner, tool).dump(7)
    assert dump.failure is not None
    assert dump.failure.kind is FailureKind.TORN
    assert dump.threads is not None


def test_the_same_strange_stack_twice_is_whole(tmp_path: Path, runner: ChildRunner) -> None:
    tool = a_tool(
        tmp_path / "embedded",
        "import json\n"
        "frames = [{'name': 'run', 'filename': 'x.py', 'line': 1}]\n"
        "print(json.dumps([{'os_thread_id': 7, 'frames': frames}]))",
    )
    dump = PythonStacks(runner, tool).dump(7)
    assert dump.failure is None
    assert dump.threads is not None


def test_garbage_from_the_tool_is_a_failure(tmp_path: Path, runner: ChildRunner) -> None:
    dump = PythonStacks(runner, a_tool(tmp_path / "t", "print('no json')")).dump(7)
    assert dump.failure is not None
    assert dump.failure.kind is FailureKind.OTHER
