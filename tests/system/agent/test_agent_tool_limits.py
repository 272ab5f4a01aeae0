"""The limits of a tool on the node, and the cost for others of a process that abuses it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.children import MAX_TOOL_MEMORY_BYTES, OOM_SCORE, ChildRunner, Ended
from agent.dumpers.dumper import Target
from agent.dumpers.python_stacks import PY_SPY_DEADLINE_S, PythonStacks, find_py_spy
from agent.dumpers.source_loops import SourceLoops
from agent.dumps.round import Round
from agent.procfs import Proc
from tests.agent.agent_scene import a_taker
from tests.system.agent.agent_processes import PROGRAMS, Victim
from tests.waiting import PATIENCE_S, wait_until
from watchtower.wire.dumps import FailureKind
from watchtower.wire.stacks import Frame, Stack

Start = Callable[..., Victim]
MB = 1 << 20


@pytest.fixture
def runner() -> ChildRunner:
    return ChildRunner()


def run_python(runner: ChildRunner, statements: str, deadline_s: float = PATIENCE_S):
    return runner.run([sys.executable, "-I", "-S", "-c", statements], deadline_s)


def test_a_tool_has_limits_and_is_the_first_to_go_without_memory(runner: ChildRunner) -> None:
    outcome = run_python(
        runner,
        "import json, resource, time\ntime.sleep(0.5)\n"
        "limits = [resource.getrlimit(w) for w in (resource.RLIMIT_DATA, resource.RLIMIT_CORE)]\n"
        "print(json.dumps([*limits, int(open('/proc/self/oom_score_adj').read())]))",
    )
    memory, core, score = json.loads(outcome.output)
    assert memory == [MAX_TOOL_MEMORY_BYTES] * 2
    assert core == [0, 0]
    assert score == OOM_SCORE
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] != MAX_TOOL_MEMORY_BYTES


def test_a_tool_that_wants_too_much_memory_is_known_by_it(runner: ChildRunner) -> None:
    outcome = run_python(runner, "import time\ntime.sleep(0.5)\nx = b'x' * (1 << 30)")
    assert (outcome.code, outcome.ended) == (None, Ended.MEMORY)


@pytest.mark.parametrize(
    ("statements", "ended"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", Ended.SIGNAL),
        ("import time; time.sleep(600)", Ended.DEADLINE),
        ("while True: print('x' * 10000)", Ended.OUTPUT),
        ("raise SystemExit(3)", None),
    ],
)
def test_why_a_tool_ended_is_known(runner: ChildRunner, statements: str, ended: Ended) -> None:
    outcome = run_python(runner, statements, 1.0 if ended is Ended.DEADLINE else PATIENCE_S)
    assert outcome.ended is ended
    assert outcome.code == (None if ended else 3)


def test_a_source_file_of_the_longest_kind_fits_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.dumpers.source_loops.SOURCE_DEADLINE_S", PATIENCE_S)
    line = "    if [a for a in (1, 2, 3)]: break\n"
    body = "for i in x:\n" + line * ((MB - 100) // len(line))
    source = tmp_path / "long.py"
    source.write_text(body)
    os.utime(source, (1, 1))
    frame = Frame(function="f", file=str(source), line=5)
    stack = Stack(digest="d", frames=(frame,))
    loops = SourceLoops(Proc(), ChildRunner())
    (filled,) = loops.fill([(stack, os.getpid())], time.monotonic() + PATIENCE_S)
    assert filled.frames[0].has_source


def a_target(pid: int, rank: int) -> Target:
    stat = Proc().stat(pid)
    assert stat is not None
    return Target(rank=rank, pid=pid, start_time=stat.start_time, read_page=lambda: None)


@pytest.fixture
def hostile(tmp_path: Path, start: Start) -> list[Victim]:
    """Two processes on which an unlimited py-spy takes 1.2 GB each."""
    program, python = str(PROGRAMS / "huge_program.py"), str(tmp_path / "python3")
    subprocess.run([sys.executable, program, "forge", python], check=True, timeout=PATIENCE_S)
    return [start([python, program], PYTHONHOME=sys.base_prefix) for _ in range(2)]


def take(stacks: PythonStacks, targets: list[Target]) -> Round:
    taker = a_taker(Proc(), stacks)
    return taker.take(targets, deadline=time.monotonic() + PATIENCE_S)


@pytest.fixture
def tool(tmp_path: Path) -> str:
    """The real py-spy; it writes how much memory of its own it had at most."""
    if not find_py_spy():
        pytest.skip("py-spy is not installed: pip install py-spy")
    path = tmp_path / "py-spy"
    path.write_text(
        f"#!{sys.executable} -IS\n"
        "import os, resource, sys, time\n"
        # The agent sets the limits from outside. A child that starts before has none.
        "while resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY:\n"
        "    time.sleep(0.001)\n"
        f"code = os.spawnv(os.P_WAIT, {find_py_spy()!r}, sys.argv)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        f"print(used, file=open({str(tmp_path / 'used')!r}, 'a'))\n"
        "sys.exit(code) if code >= 0 else os.kill(os.getpid(), -code)\n"
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.ptrace
@pytest.mark.usefixtures("ptrace")
def test_hundreds_of_threads_with_deep_stacks_fit_the_limit(
    tmp_path: Path,
    start: Start,
    runner: ChildRunner,
    tool: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent.dumpers.python_stacks.PY_SPY_DEADLINE_S", PATIENCE_S)
    victim = start(RANK="0")
    victim.do("def deep(n): return deep(n - 1) if n else time.sleep(600)")
    victim.do(
        "[threading.Thread(target=deep, args=(40,), daemon=True).start() for _ in range(200)]"
    )
    (dump,) = take(PythonStacks(runner, tool), [a_target(victim.pid, 0)]).ranks
    assert dump.failure is None
    assert len(dump.threads) > 100
    assert int((tmp_path / "used").read_text()) * 1024 < MAX_TOOL_MEMORY_BYTES / 4


@pytest.mark.ptrace
@pytest.mark.usefixtures("ptrace")
def test_a_hostile_process_takes_no_memory_and_its_neighbour_is_dumped_as_before(
    tmp_path: Path, start: Start, hostile: list[Victim], runner: ChildRunner, tool: str
) -> None:
    victim = start(RANK="0")
    victim.begin("sleep_in_a_loader()")
    wait_until(lambda: b"nanosleep" in Proc().try_read(victim.pid, "wchan"), "it sleeps")
    targets = [a_target(each.pid, rank) for rank, each in enumerate([*hostile, victim])]
    stacks = PythonStacks(runner, tool)
    lines = []
    for _ in range(4):
        began = time.monotonic()
        taken = take(stacks, targets)
        assert time.monotonic() - began < 2 * PY_SPY_DEADLINE_S
        *forged, dump = taken.ranks
        assert dump.failure is None
        found = {stack.digest: stack for stack in taken.stacks}
        assert found[dump.threads[0].digest].frames[0].function == "sleep_in_a_loader"
        for each in forged:
            assert each.failure is not None
            assert each.failure.kind is FailureKind.OTHER
            lines.append(each.failure.help_text)
    assert all("MB" in text for text in lines)
    assert [("not dumped again" in text) for text in lines] == [False] * 4 + [True] * 4
    used = [int(line) * 1024 for line in (tmp_path / "used").read_text().split()]
    assert len(used) == 8, "the hostile ones twice, the victim each time"
    assert max(used) < MAX_TOOL_MEMORY_BYTES
