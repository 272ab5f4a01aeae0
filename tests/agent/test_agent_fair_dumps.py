"""One user's processes on which py-spy hangs delay no other user's dumps, and are dumped last.

The processes are files of a /proc of our own; py-spy answers at the edge where it would be started.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from agent.config import DUMPS_AT_ONCE, PY_SPY_AT_ONCE
from agent.dumpers.python_stacks import PythonStacks
from agent.dumpers.tool_process import ChildRunner, Ended, Outcome
from agent.dumping.dump_round import Round, RoundTaker, Target, no_page
from tests.agent.test_agent_memory_reader import Node
from watchtower.wire.dumps import FailureKind

HOSTILE, VICTIM, THIRD = "uid:2000", "uid:1000", "uid:3000"
HANG_S = 1.0
"""In place of the 3 s that py-spy has."""

QUICK_S = 0.01
MUCH_LATER_S = 2.0


class PySpy(ChildRunner):
    """A py-spy that takes 10 ms, and hangs on some processes until it is killed."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.hangs_on: set[int] = set()
        self.asked: list[int] = []
        self.running: list[str] = []
        self.most: dict[str, int] = {}
        self._count = threading.Lock()
        self._over = threading.Event()

    def run(self, command: Sequence[str], deadline_s: float, owner: str = "") -> Outcome:
        pid = int(command[-1])
        with self._count:
            self.asked.append(pid)
            self.running.append(owner)
            for key, count in ((owner, self.running.count(owner)), ("", len(self.running))):
                self.most[key] = max(self.most.get(key, 0), count)
        hangs = pid in self.hangs_on
        self._over.wait(deadline_s if hangs else QUICK_S)
        with self._count:
            self.running.remove(owner)
        if hangs:
            return Outcome(code=None, output=b"", errors=b"", ended=Ended.DEADLINE)
        frames = [{"name": "<module>", "filename": "train.py", "line": 7}]
        said = json.dumps([{"os_thread_id": pid, "thread_name": "MainThread", "frames": frames}])
        return Outcome(code=0, output=said.encode(), errors=b"")

    def end(self) -> None:
        self._over.set()


class Scene:
    """A node, its rounds and its py-spy."""

    def __init__(self, path: Path) -> None:
        self.node, self.py_spy = Node(path), PySpy()
        self.stacks = PythonStacks(self.py_spy, "py-spy")
        self.taker = RoundTaker(self.node.proc, self.stacks, lambda _: None)
        self._threads: list[threading.Thread] = []

    def ranks(self, first: int, count: int = 8, *, hang: bool = False) -> list[Target]:
        for pid in range(first, first + count):
            self.node.start(pid)
        pids = range(first, first + count)
        self.py_spy.hangs_on |= set(pids) if hang else set()
        return [
            Target(rank=pid - first, pid=pid, start_time=pid, read_page=no_page) for pid in pids
        ]

    def take(self, targets: list[Target], owner: str, wait_s: float = 10.0) -> Round:
        return self.taker.take(targets, deadline=time.monotonic() + wait_s, owner=owner)

    def begin(self, targets: list[Target], owner: str) -> None:
        """Take a round beside the test."""
        thread = threading.Thread(target=self.take, args=(targets, owner))
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        self.py_spy.end()
        for thread in self._threads:
            thread.join(30)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr("agent.dumpers.python_stacks.PY_SPY_DEADLINE_S", HANG_S)
    scene = Scene(tmp_path)
    yield scene
    scene.close()


def timed(take: Callable[[], Round]) -> float:
    """Return how long a round took; all of its ranks have stacks."""
    began = time.monotonic()
    assert [dump.failure for dump in take().ranks] == [None] * 8
    return time.monotonic() - began


def test_hanging_dumps_of_one_owner_delay_no_dump_of_another_one(scene: Scene) -> None:
    victim = scene.ranks(100)
    usual_s = timed(lambda: scene.take(victim, VICTIM))
    for number in range(DUMPS_AT_ONCE // 2):  # what the slots leave of 60 jobs
        scene.begin(scene.ranks(1000 + 10 * number, hang=True), HOSTILE)
    for _ in range(3):
        assert timed(lambda: scene.take(victim, VICTIM)) < usual_s + HANG_S / 2
    assert scene.py_spy.most[""] <= PY_SPY_AT_ONCE
    assert scene.py_spy.most[HOSTILE] <= PY_SPY_AT_ONCE - 1


def test_hanging_dumps_of_two_owners_delay_those_of_a_third_one_by_less_than_one_turn(
    scene: Scene,
) -> None:
    victim = scene.ranks(100)
    usual_s = timed(lambda: scene.take(victim, VICTIM))
    for owner, first in ((HOSTILE, 1000), (THIRD, 2000)):
        scene.begin(scene.ranks(first, hang=True), owner)
    assert timed(lambda: scene.take(victim, VICTIM)) < usual_s + HANG_S + MUCH_LATER_S / 2


def test_a_process_whose_last_dump_timed_out_is_dumped_after_all_others(scene: Scene) -> None:
    ranks = scene.ranks(100)
    scene.node.start(150, parent=100)  # a child
    scene.py_spy.hangs_on = {100, 103}
    first = scene.take(ranks, VICTIM)
    failed = {dump.rank: dump.failure for dump in first.ranks if dump.failure is not None}
    assert {rank: failure.kind for rank, failure in failed.items()} == {
        0: FailureKind.TIMEOUT,
        3: FailureKind.TIMEOUT,
    }
    scene.py_spy.asked.clear()
    scene.take(ranks, VICTIM)
    assert set(scene.py_spy.asked[-2:]) == {100, 103}
    assert scene.py_spy.asked[-3] == 150, "a child comes after the ranks, but before these"


def test_such_a_process_waits_for_the_dumps_of_other_jobs_of_its_owner(scene: Scene) -> None:
    ended, good = scene.ranks(100, hang=True), scene.ranks(200)
    scene.take(ended, VICTIM, wait_s=HANG_S / 2)
    known = [target.pid for target in ended if scene.stacks.times_ended(target.pid, target.pid)]
    assert len(known) == PY_SPY_AT_ONCE - 1
    scene.py_spy.asked.clear()
    scene.begin([target for target in ended if target.pid in known], VICTIM)
    assert timed(lambda: scene.take(good, VICTIM)) < HANG_S
    assert len([pid for pid in scene.py_spy.asked if pid in known]) <= 1


def test_failures_of_one_owner_s_processes_are_not_reported_for_the_node(scene: Scene) -> None:
    for number in range(3):
        scene.take(scene.ranks(100 + 10 * number, hang=True), HOSTILE, wait_s=2 * HANG_S)
    assert len(scene.py_spy.asked) > 4
    assert scene.stacks.trouble() == ""
    timed(lambda: scene.take(scene.ranks(200), VICTIM))
