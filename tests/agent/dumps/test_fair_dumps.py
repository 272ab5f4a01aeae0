"""One user's processes on which py-spy hangs delay no other user's dumps, and are dumped last.

The processes are files of a /proc of our own; py-spy answers at the edge where it would be started.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from agent.children import ANY_TOOL, ChildRunner, Ended, Outcome, Tool
from agent.dumpers.dumper import Target
from agent.dumpers.python_stacks import PY_SPY_AT_ONCE, PythonStacks
from agent.dumps.round import Round
from agent.dumps.turns import DUMPS_AT_ONCE
from tests.agent.agent_scene import a_taker
from tests.agent.ranks.test_guarded_reads import Node
from tests.waiting import PATIENCE_S, wait_until
from watchtower.wire.dumps import FailureKind

HOSTILE, VICTIM, THIRD = "uid:2000", "uid:1000", "uid:3000"
QUICK_S = 0.01


class PySpy(ChildRunner):
    """A py-spy that takes 10 ms, and hangs on some processes until it is killed."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs_on: dict[int, threading.Event] = {}
        self.asked: list[int] = []
        self.running: list[str] = []
        self.most: dict[str, int] = {}
        self._count = threading.Lock()

    def run(
        self, command: Sequence[str], deadline_s: float, owner: str = "", tool: Tool = ANY_TOOL
    ) -> Outcome:
        pid = int(command[-1])
        with self._count:
            self.asked.append(pid)
            self.running.append(owner)
            for key, count in ((owner, self.running.count(owner)), ("", len(self.running))):
                self.most[key] = max(self.most.get(key, 0), count)
        killed = self.hangs_on.get(pid)
        if killed is not None:
            killed.wait(PATIENCE_S)
        else:
            time.sleep(QUICK_S)
        with self._count:
            self.running.remove(owner)
        if killed is not None:
            return Outcome(code=None, output=b"", errors=b"", ended=Ended.DEADLINE)
        frames = [{"name": "<module>", "filename": "train.py", "line": 7}]
        text = json.dumps([{"os_thread_id": pid, "thread_name": "MainThread", "frames": frames}])
        return Outcome(code=0, output=text.encode(), errors=b"")

    def hang_on(self, *pids: int, killed: bool = False) -> None:
        """Hang on these processes; `killed`: the deadline of py-spy is over at once."""
        for pid in pids:
            event = self.hangs_on[pid] = threading.Event()
            if killed:
                event.set()

    def kill(self, *pids: int) -> None:
        """End what runs on these processes, now or later, as at its deadline."""
        for pid in pids:
            self.hangs_on[pid].set()


class Scene:
    """A node, its rounds and its py-spy."""

    def __init__(self, path: Path) -> None:
        self.node, self.py_spy = Node(path), PySpy()
        # A test that stays in process starts none: py-spy is checked on the process 7.
        self.stacks = PythonStacks(self.py_spy, "py-spy", lambda: nullcontext(7))
        self.taker = a_taker(self.node.proc, self.stacks)
        self._threads: list[threading.Thread] = []

    def ranks(self, first: int) -> list[Target]:
        pids = range(first, first + 8)
        for pid in pids:
            self.node.start(pid)
        return [
            Target(rank=pid - first, pid=pid, start_time=pid, read_page=lambda: None)
            for pid in pids
        ]

    def take(self, targets: list[Target], owner: str) -> Round:
        return self.taker.take(targets, deadline=time.monotonic() + PATIENCE_S, owner=owner)

    def begin_hanging(self, first: int, owner: str) -> list[int]:
        """Begin a round of ranks on which py-spy hangs; return their pids."""
        targets = self.ranks(first)
        self.py_spy.hang_on(*(target.pid for target in targets))
        self.begin(targets, owner)
        return [target.pid for target in targets]

    def begin(self, targets: list[Target], owner: str) -> threading.Thread:
        thread = threading.Thread(target=self.take, args=(targets, owner))
        self._threads.append(thread)
        thread.start()
        return thread

    def close(self) -> None:
        self.py_spy.kill(*self.py_spy.hangs_on)
        for thread in self._threads:
            thread.join(PATIENCE_S)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


def failures(taken: Round) -> dict[int, FailureKind]:
    return {dump.rank: dump.failure.kind for dump in taken.ranks if dump.failure is not None}


def test_dumps_of_one_owner_that_never_end_delay_no_dump_of_another_one(scene: Scene) -> None:
    for number in range(DUMPS_AT_ONCE // 2):  # what the slots leave of 60 jobs
        scene.begin_hanging(1000 + 10 * number, HOSTILE)
    mine = PY_SPY_AT_ONCE - 1
    wait_until(lambda: scene.py_spy.running == [HOSTILE] * mine, "they hold their places")
    victim = scene.ranks(100)
    for _ in range(3):
        assert failures(scene.take(victim, VICTIM)) == {}
    assert scene.py_spy.running == [HOSTILE] * mine
    assert scene.py_spy.most == {HOSTILE: mine, VICTIM: 1, "": PY_SPY_AT_ONCE}


def test_hanging_dumps_of_two_owners_delay_those_of_a_third_one_by_one_turn(scene: Scene) -> None:
    begun = scene.begin_hanging(1000, HOSTILE)
    wait_until(lambda: len(scene.py_spy.running) == PY_SPY_AT_ONCE - 1, "the first one hangs")
    scene.begin_hanging(2000, THIRD)
    wait_until(lambda: len(scene.py_spy.running) == PY_SPY_AT_ONCE, "no place is left")
    victim = scene.ranks(100)
    thread = scene.begin(victim, VICTIM)
    wait_until(lambda: scene.stacks._turns._places._waiting.get(VICTIM), "the victim waits")
    scene.py_spy.kill(begun[0])
    thread.join(PATIENCE_S)
    assert set(scene.py_spy.asked[-8:]) == {target.pid for target in victim}


def test_a_process_whose_last_dump_timed_out_is_dumped_after_all_others(scene: Scene) -> None:
    ranks = scene.ranks(100)
    scene.node.start(150, parent=100)  # a child
    scene.py_spy.hang_on(100, 103, killed=True)
    late = {0: FailureKind.TIMEOUT, 3: FailureKind.TIMEOUT}
    assert failures(scene.take(ranks, VICTIM)) == late
    scene.py_spy.asked.clear()
    assert failures(scene.take(ranks, VICTIM)) == late
    assert set(scene.py_spy.asked[-2:]) == {100, 103}
    assert 150 in scene.py_spy.asked[-4:], "a child comes after the ranks, but before these"


def test_such_a_process_leaves_a_place_for_the_other_jobs_of_all_owners(scene: Scene) -> None:
    slow = scene.ranks(100)
    pids = [target.pid for target in slow]
    scene.py_spy.hang_on(*pids, killed=True)
    scene.take(slow, VICTIM)
    assert all(scene.stacks._backoff.times((pid, pid)) for pid in pids)
    scene.py_spy.hang_on(*pids)
    scene.begin(slow, VICTIM)
    wait_until(lambda: scene.py_spy.running == [VICTIM], "one of them hangs")
    assert failures(scene.take(scene.ranks(200), VICTIM)) == {}
    assert failures(scene.take(scene.ranks(300), THIRD)) == {}
    assert scene.py_spy.running == [VICTIM]


def test_failures_of_one_owner_s_processes_are_not_reported_for_the_node(scene: Scene) -> None:
    for number in range(3):
        targets = scene.ranks(100 + 10 * number)
        scene.py_spy.hang_on(*(target.pid for target in targets), killed=True)
        assert len(failures(scene.take(targets, HOSTILE))) == 8
    wait_until(lambda: 7 in scene.py_spy.asked, "py-spy is tried on a process of the agent")
    assert failures(scene.take(scene.ranks(200), VICTIM)) == {}
    assert scene.stacks.trouble() == ""
