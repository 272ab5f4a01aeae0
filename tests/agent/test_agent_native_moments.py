"""Native functions of an earlier moment are not shown, and no rank is stopped often."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.children import ChildRunner, Ended, Outcome
from agent.dumpers import native_functions
from agent.dumpers.native_functions import (
    AGAIN_S,
    FORGET_S,
    GONE_HELP,
    PYTHON_HELP,
    Moment,
    NativeFunctionReader,
    failed,
)
from agent.dumpers.native_places import NativePlaces
from agent.procfs import Proc
from watchtower.wire.dumps import NativeFrame, NativeFunctions

PROCESS = (10, 1)
READ = NativeFunctions(calls=(NativeFrame(file="libnccl.so.2", function="ncclGroupEnd"),))
BEATEN = Moment(stack="a", beat=(7, 700))
BLOCKED = Moment(stack="a", counters=(50, 5))
SPINS = Moment(stack="a")


class World(ChildRunner):
    """A clock, and a reader whose py-spy and samples print what the test wants."""

    def __init__(self, proc: Proc, outcome: Outcome | None = None) -> None:
        super().__init__()
        self.now, self.runs, self.outcome = 1000.0, 0, outcome
        self.threads = b""
        self.while_sampled: Callable[[], object] = lambda: None
        places = NativePlaces(proc, self)
        self.reader = NativeFunctionReader(proc, self, "py-spy", places=places)

    def monotonic(self) -> float:
        return self.now

    def run(self, command: list[str], *_: object) -> Outcome:
        if "py-spy" not in command:
            self.while_sampled()
            return Outcome(code=0, output=self.threads + b"\n", errors=b"")
        self.runs += "--version" not in command
        if "--version" in command:
            return self.outcome or Outcome(code=0, output=b"py-spy 0.4.1\n", errors=b"")
        return Outcome(code=0, output=b"[]", errors=b"")

    def read(self) -> None:
        self.reader.read(*PROCESS, "uid:0")

    def recall(self, moment: Moment, after_s: float = 0.0) -> NativeFunctions | None:
        self.now += after_s
        return self.reader.recall(*PROCESS, moment)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """A proc with one process that sleeps."""
    directory = tmp_path / "proc" / "10"
    (directory / "task" / "10").mkdir(parents=True)
    fields = ["S", "1", *["0"] * 17, str(PROCESS[1]), *["0"] * 30]
    for path in (directory / "stat", directory / "task" / "10" / "stat"):
        path.write_text(f"10 (python) {' '.join(fields)}\n")
    (directory / "status").write_text("TracerPid:\t0\n")
    return Proc(str(tmp_path))


@pytest.fixture
def world(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(proc)
    monkeypatch.setattr(native_functions.time, "monotonic", made.monotonic)
    return made


@pytest.mark.parametrize(
    ("first", "later", "after_s", "is_known"),
    [
        (BEATEN, BEATEN, 3600.0, True),
        (BEATEN, Moment(stack="a", beat=(8, 800)), 1.0, False),
        (BEATEN, Moment(stack="b", beat=(7, 700)), 1.0, False),
        (BEATEN, Moment(beat=(7, 700)), 3600.0, True),
        (BLOCKED, BLOCKED, 3600.0, True),
        (BLOCKED, Moment(stack="a", counters=(50, 6)), 1.0, False),
        (BLOCKED, SPINS, 1.0, True),
        (SPINS, SPINS, FORGET_S - 1, True),
        (SPINS, SPINS, FORGET_S, False),
    ],
)
def test_functions_are_known_while_the_thread_stays(world, first, later, after_s, is_known):
    world.reader.remember(PROCESS, READ)
    assert world.recall(first) == READ
    found = world.recall(later, after_s)
    assert (found is not None) == is_known
    assert found is None or found.age_s == after_s
    assert is_known or world.recall(first) is None, "it came back to the same place"


def test_a_failure_is_forgotten(world):
    world.reader.remember(PROCESS, failed("its cgroup is frozen"), is_stopped=False)
    assert world.recall(BEATEN).failure
    assert world.recall(SPINS, 1.0).failure, "it does not depend on the place"
    assert world.recall(BEATEN, FORGET_S) is None


def sampled(*, running: bool, **leaves: int) -> bytes:
    """Return a main thread as the child prints it."""
    thread = {"tid": 10, "running": running, "leaves": leaves, "chain": list(leaves)}
    return json.dumps({"pid": 10, "threads": [thread]}).encode()


@pytest.mark.parametrize(
    ("threads", "is_stopped"),
    [
        (sampled(running=True, python3=24), False),
        (sampled(running=True, libc=4, python3=20), False),
        (sampled(running=True, libnccl=24), True),
        (sampled(running=False, python3=1), True),  # it may wait for the GIL
        (sampled(running=True, python3=1), True),  # too few samples
        (b"", True),  # there were no samples
    ],
)
def test_a_rank_that_runs_python_is_not_stopped(world, threads, is_stopped):
    world.threads = threads
    world.read()
    assert world.runs == is_stopped
    assert (world.recall(BEATEN).failure == PYTHON_HELP) == (not is_stopped)


def test_a_process_that_ends_while_it_is_sampled_is_not_stopped(world, tmp_path):
    """Its pid may belong to another process by now."""
    world.while_sampled = (tmp_path / "proc" / "10" / "stat").unlink
    world.read()
    assert world.runs == 0
    assert world.recall(BEATEN).failure == GONE_HELP


def test_a_rank_is_stopped_once_in_half_a_minute(world):
    world.read()
    assert world.runs == 1
    world.read()
    assert "stopped" not in world.recall(BEATEN).failure, "it is where it was"
    found = world.recall(Moment(stack="a", beat=(8, 800)), 6.0)
    assert "py-spy stopped it 6 s ago" in found.failure
    assert "at most once in 30 s" in found.failure
    world.now += AGAIN_S - 7
    world.read()
    assert world.runs == 1
    world.now += 1
    world.read()
    assert world.runs == 2


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (
            Outcome(code=None, output=b"", errors=b"", ended=Ended.DEADLINE),
            "did not return within 3 s",
        ),
        (Outcome(code=127, output=b"", errors=b"py-spy: not found\n"), "py-spy: not found"),
        (Outcome(code=0, output=b"py-spy 0.3.14\n", errors=b""), "py-spy 0.3.14 may leave"),
        (Outcome(code=0, output=b"hello\n", errors=b""), "of an unknown release"),
    ],
)
def test_why_the_release_of_py_spy_is_not_known(world, outcome, why):
    world.outcome = outcome
    world.read()
    assert why in world.recall(BEATEN).failure
    assert world.runs == 0
