"""Loops around the lines of real processes' frames, and files that mean harm."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.children import ChildRunner
from agent.dumpers.source_loops import SourceLoops
from agent.procfs import Proc
from tests.agent.agent_scene import RecordingTower
from tests.system.agent.agent_processes import PROGRAMS, RunningAgent, Victim
from tests.waiting import PATIENCE_S, wait_until
from watchtower.wire.stacks import Frame, Stack, make_stack

Start = Callable[..., Victim]
PROGRAM = "def f():\n    for x in y:\n        while x:\n            g()\n"


@pytest.fixture
def runner() -> ChildRunner:
    return ChildRunner()


@pytest.fixture
def loops(runner: ChildRunner, monkeypatch: pytest.MonkeyPatch) -> SourceLoops:
    """A reader that waits longer than usual: a busy machine starts its child late."""
    monkeypatch.setattr("agent.dumpers.source_loops.SOURCE_DEADLINE_S", PATIENCE_S)
    return SourceLoops(Proc(), runner)


def a_stack(path: Path | str, *lines: int, function: str = "f", library: bool = False) -> Stack:
    return make_stack(
        tuple(
            Frame(function=function, file=str(path), line=line, library=library) for line in lines
        )
    )


def fill(loops: SourceLoops, pid: int, *stacks: Stack) -> list[tuple[tuple[int, ...], bool]]:
    """Loops and whether there was source, frame by frame."""
    filled = loops.fill([(stack, pid) for stack in stacks], time.monotonic() + PATIENCE_S)
    assert [stack.digest for stack in filled] == [stack.digest for stack in stacks]
    return [(frame.loops, frame.has_source) for stack in filled for frame in stack.frames]


UNKNOWN = ((), False)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file that is older than any process of its test."""
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    os.utime(path, (1e9, 1e9))
    return path


def test_loops_are_told_innermost_first(start: Start, loops: SourceLoops, source: Path) -> None:
    pid = start(RANK="0").pid
    assert fill(loops, pid, a_stack(source, 4, 2, 1, 99)) == [
        ((3, 2), True),
        ((2,), True),
        UNKNOWN,
        UNKNOWN,
    ]


def test_a_second_round_reads_nothing(start: Start, loops: SourceLoops, source: Path) -> None:
    pid = start(RANK="0").pid
    first = fill(loops, pid, a_stack(source, 4))
    source.unlink()
    assert fill(loops, pid, a_stack(source, 4)) == first == [((3, 2), True)]
    assert fill(loops, pid, a_stack(source, 2)) == [UNKNOWN]


def test_a_file_that_changed_since_the_process_began_is_not_believed(
    start: Start, loops: SourceLoops, source: Path
) -> None:
    pid = start(RANK="0").pid
    later = time.time() + 60
    os.utime(source, (later, later))
    assert fill(loops, pid, a_stack(source, 4)) == [UNKNOWN]


def test_what_is_no_source_is_refused(start: Start, loops: SourceLoops, tmp_path: Path) -> None:
    pid = start(RANK="0").pid
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_text("x" * 70_000 + "\n" + PROGRAM)
    (tmp_path / "large").write_text(PROGRAM * 30_000)
    (tmp_path / "binary").write_bytes(b"\0" + PROGRAM.encode())
    for path in tmp_path.iterdir():
        os.utime(path, (1e9, 1e9))
    names = ("pipe", "long", "large", "binary", "missing", "../up")
    stacks = [a_stack(tmp_path / name, 4) for name in names]
    assert fill(loops, pid, a_stack("/dev/zero", 4), a_stack("/", 4), *stacks) == [UNKNOWN] * 8


def test_a_bad_file_does_not_cost_the_good_ones(
    start: Start, loops: SourceLoops, source: Path
) -> None:
    pid = start(RANK="0").pid
    stacks = [a_stack("/nowhere.py", 4), a_stack(source, 4), a_stack("/dev/null", 1)]
    assert fill(loops, pid, *stacks) == [UNKNOWN, ((3, 2), True), UNKNOWN]


def test_a_file_that_hangs_is_left_alone_from_then_on(
    start: Start, loops: SourceLoops, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.children._START", HANGS)
    pid = start(RANK="0").pid
    stacks = [a_stack("/hangs.py", 4), a_stack(source, 4)]
    with monkeypatch.context() as slow:
        slow.setattr("agent.dumpers.source_loops.SOURCE_DEADLINE_S", 3.0)
        began = time.monotonic()
        assert fill(loops, pid, *stacks) == [UNKNOWN, UNKNOWN]
        assert time.monotonic() - began < PATIENCE_S / 2
    assert fill(loops, pid, *stacks) == [UNKNOWN, ((3, 2), True)]


HANGS = """
import sys, time; sys.path.append(sys.argv.pop(1)); sys.argv.pop(1)
from agent.dumpers import source_child
read = source_child.read_source
hang = lambda process, path: time.sleep(60) if path == "/hangs.py" else read(process, path)
source_child.read_source = hang
source_child.main()
"""


def test_a_child_that_starts_too_late_costs_no_file(
    start: Start, loops: SourceLoops, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = start(RANK="0").pid
    with monkeypatch.context() as slow:
        slow.setattr("agent.dumpers.source_loops.SOURCE_DEADLINE_S", 0.3)
        slow.setattr("agent.children._START", "import time; time.sleep(60)")
        assert fill(loops, pid, a_stack(source, 4)) == [UNKNOWN]
    assert fill(loops, pid, a_stack(source, 4)) == [((3, 2), True)]


def test_a_child_that_breaks_is_no_harm(
    start: Start, loops: SourceLoops, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = start(RANK="0").pid
    for broken in (
        "raise SystemExit(1)",
        "print('{}\\nno json')",
        "print('{}\\n{\"loops\": [[1], [2]]}')",
    ):
        monkeypatch.setattr("agent.children._START", broken)
        assert fill(loops, pid, a_stack(source, 4)) == [UNKNOWN]
        loops._known.clear()


def test_the_agents_own_stop_ends_the_reading(
    start: Start, loops: SourceLoops, runner: ChildRunner, source: Path
) -> None:
    runner.stop()
    assert fill(loops, start(RANK="0").pid, a_stack(source, 4)) == [UNKNOWN]


def test_an_absolute_link_leads_to_what_the_process_sees(
    start: Start, loops: SourceLoops, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "link.py").symlink_to(source)
    pid = start(RANK="0").pid
    assert fill(loops, pid, a_stack(tmp_path / "link.py", 4)) == [((3, 2), True)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")
def test_what_the_process_may_not_read_is_not_read_for_it(
    start: Start, loops: SourceLoops, source: Path, tmp_path: Path
) -> None:
    (folder := tmp_path / "closed").mkdir(mode=0o700)
    (inside := folder / "train.py").write_text(PROGRAM)
    (secret := tmp_path / "secret.py").write_text(PROGRAM)
    secret.chmod(0o600)
    (link := tmp_path / "link.py").symlink_to(secret)
    for path in (inside, secret):
        os.utime(path, (1e9, 1e9))
    for path in (tmp_path, *tmp_path.parents):  # pytest closes its folders
        if path != Path("/") and path.stat().st_uid == os.geteuid() and "pytest" in str(path):
            path.chmod(path.stat().st_mode | 0o011)
    victim = start(RANK="0")
    victim.do("os.setgroups([]); os.setgid(64102); os.setuid(64102)")
    stacks = [a_stack(path, 4) for path in (source, inside, secret, link, "/proc/filesystems")]
    assert fill(loops, victim.pid, *stacks) == [((3, 2), True), *[UNKNOWN] * 4]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its root")
def test_in_a_container_the_containers_file_is_read(
    start: Start, loops: SourceLoops, tmp_path: Path
) -> None:
    inside = tmp_path / "root"
    (inside / "code").mkdir(parents=True)
    (inside / "code" / "train.py").write_text(PROGRAM)
    (inside / "link.py").symlink_to("/code/train.py")
    os.utime(inside / "code" / "train.py", (1e9, 1e9))
    victim = start(RANK="0")
    victim.do(f"os.chroot({str(inside)!r})")
    assert fill(loops, victim.pid, a_stack("/link.py", 4)) == [((3, 2), True)]


@pytest.mark.ptrace
@pytest.mark.usefixtures("ptrace")
@pytest.mark.parametrize("options", [(), ("--no-source",)])
def test_a_dump_of_a_hung_program_carries_its_loops(
    start: Start,
    tower: RecordingTower,
    run_agent: Callable[..., RunningAgent],
    options: tuple[str, ...],
) -> None:
    tower.deadline_s = 0.5
    program = PROGRAMS / "hangs_in_a_loop.py"
    victim = start([sys.executable, str(program)], RANK="0", WORLD_SIZE="1", WATCHTOWER_JOB="j")
    run_agent(tower.url, *options)
    wait_until(lambda: len(tower.dumps) >= 2, "two rounds were dumped")
    os.kill(victim.pid, signal.SIGKILL)
    for batch in tower.dumps[:2]:
        frames = {
            frame["function"]: (frame["line"], frame.get("loops", []), frame.get("has_source"))
            for stack in batch["stacks"]
            for frame in stack["frames"]
        }
        known = not options
        assert frames["train"] == (17, [15, 13] if known else [], known)
        assert frames["fetch"][1:] == ([], known)
        assert frames["<module>"][1:] == ([], known)
