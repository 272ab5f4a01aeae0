"""A process that holds its memory map: who reads its command line hangs, and nobody else does.

A FIFO in place of the file hangs in open(2) for real, until somebody opens it for writing.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.children import ChildRunner
from agent.dumpers.dumper import Target
from agent.dumpers.python_stacks import PythonStacks
from agent.procfs import Proc, StartedWith
from agent.ranks.discovery import Discovery
from agent.ranks.guarded_reads import (
    BLOCKED_S,
    READ_WAIT_BURST_S,
    READ_WAIT_S,
    READ_WAIT_SHARE,
    GuardedReads,
)
from agent.ranks.owners import Owners
from agent.ranks.process_table import ProcessTable
from tests.agent.agent_scene import a_taker
from tests.waiting import PATIENCE_S, wait_until
from watchtower.wire.dumps import FailureKind
from watchtower.wire.report import ProcessState

NO_PY_SPY = PythonStacks(ChildRunner(), "")


class Node:
    """A /proc of our own, in which some files do not answer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hanging: list[Path] = []
        self.proc = Proc(str(path))

    def start(self, pid: int, parent: int = 1, hangs: str = "", user: int = 1000) -> None:
        """Have a rank; the file `hangs` of it does."""
        folder = self._path / "proc" / str(pid)
        folder.mkdir(parents=True)
        for name, content in {
            "environ": f"RANK={pid}\0",
            "cmdline": "python\0train.py\0",
            "comm": "pt_data_worker\n",
            "status": f"Name:\tpython\nUid:\t{user}\n",
            "syscall": "running\n",
            "stat": f"{pid} (python) S {parent} {'0 ' * 17}{pid} {'0 ' * 30}",
        }.items():
            if name == hangs:
                self.let_hang(folder / name)
            else:
                (folder / name).write_text(content)

    def let_hang(self, path: Path) -> None:
        os.mkfifo(path)
        self._hanging.append(path)

    def let_go(self) -> None:
        """Let whoever hangs come back: it reads the end of the file."""
        for path in self._hanging:
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                continue  # nobody is there
            path.unlink()
            path.write_bytes(b"RANK=1\0")
        self._hanging.clear()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.let_go()


class Reader:
    """Reads what processes were started with."""

    def __init__(self, node: Node, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = node.proc
        self.reads = GuardedReads(Owners(node.proc).find_quietly, clock)

    def read(self, pid: int) -> StartedWith | None:
        return self.reads.run(pid, lambda: self._proc.started_with(pid))


def test_what_a_process_was_started_with_is_read(node: Node) -> None:
    node.start(7)
    started = Reader(node).read(7)
    assert started is not None
    assert (started.environ, started.command) == (b"RANK=7\0", b"python\0train.py\0")
    assert Reader(node).read(8) == StartedWith(environ=b"", command=b"")


@pytest.mark.parametrize("file", ["environ", "cmdline"])
def test_one_that_hangs_is_waited_for_once_and_the_others_are_read(node: Node, file: str) -> None:
    node.start(7, hangs=file)
    node.start(8)
    reader = Reader(node)
    assert reader.read(7) is None
    began = time.monotonic()
    assert [reader.read(7) for _ in range(100)] == [None] * 100
    assert time.monotonic() - began < 50 * READ_WAIT_S  # half of what 100 waits take
    assert reader.read(8) is not None
    node.let_go()
    wait_until(lambda: reader.read(7) is not None, "it is read when it lets go")


def test_a_process_that_answers_late_is_not_logged_and_is_read_less_often(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    reader = Reader(node, lambda: now[0])
    for pause_s in (1.0, 2.0):
        node.start(7, hangs="environ")
        assert reader.read(7) is None
        node.let_go()
        wait_until(lambda: not reader.reads._stuck, "it answers")
        now[0] += pause_s - 0.1
        assert reader.read(7) is None
        now[0] += 0.2
        shutil.rmtree(node.proc.path)
    node.start(7)
    assert reader.read(7) is not None
    assert caplog.text == ""


def test_a_process_whose_read_stays_blocked_is_logged_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    node.start(7, hangs="environ")
    reader = Reader(node, lambda: now[0])
    for now[0] in (0.0, BLOCKED_S / 2, BLOCKED_S, 2 * BLOCKED_S, 60 * BLOCKED_S):
        assert reader.read(7) is None
    assert [each.getMessage()[:44] for each in caplog.records] == [
        "a read of pid 7 in /proc hangs for 10 s: its"
    ]


def test_many_that_hang_cost_no_more_than_a_share_of_the_time(node: Node) -> None:
    now = [0.0]
    reader = Reader(node, lambda: now[0])
    for pid in range(10, 30):
        node.start(pid, hangs="environ")
    node.start(9)
    began = time.monotonic()
    for pid in range(10, 30):
        assert reader.read(pid) is None
    assert READ_WAIT_BURST_S == 4 * READ_WAIT_S
    assert time.monotonic() - began < 16 * READ_WAIT_S  # four waits, and not twenty
    assert reader.read(9) is None  # not asked: there is no time left to wait for it
    now[0] += READ_WAIT_S / READ_WAIT_SHARE
    assert reader.read(9) is not None


def test_many_of_one_user_that_hang_cost_another_user_no_answer(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.ranks.guarded_reads.MAX_STUCK_READS", 6)
    now = [0.0]
    reader = Reader(node, lambda: now[0])
    node.start(9, user=2000)
    for pid in range(10, 40):
        node.start(pid, hangs="environ")
        now[0] += READ_WAIT_S
        assert reader.read(pid) is None
        assert reader.read(9) is not None
    assert len(reader.reads._stuck) == 3


def test_a_descriptor_that_hangs_hides_no_other_rank(node: Node) -> None:
    """Its process exchanged it by an epoll that hangs, after its link was read."""
    for pid in (7, 8):
        node.start(pid)
    folder = Path(node.proc.path) / "7"
    for name in ("fd", "fdinfo"):
        (folder / name).mkdir()
    (folder / "fd/3").symlink_to("/tmp/watchtower-heartbeat.1")
    node.let_hang(folder / "fdinfo/3")
    discovery = Discovery(node.proc, ProcessTable(node.proc), match={}, host="gpu-1", own_pid=-1)
    began = time.monotonic()
    ranks = [discovery.tick(second) for second in (0.0, 1.0, 2.0)][-1]
    assert [rank.pid for rank in ranks] == [7, 8]
    assert time.monotonic() - began < 8 * READ_WAIT_S


def test_an_error_of_a_read_is_raised_and_the_next_read_works(node: Node) -> None:
    node.start(7)
    reader = Reader(node)
    with pytest.raises(ZeroDivisionError):
        reader.reads.run(7, lambda: 1 / 0)
    assert reader.read(7) is not None


@pytest.mark.parametrize(
    ("rank", "mistake", "watched"),
    [("7", "is not below WORLD_SIZE=2", [7]), ("abc", "is not a number", []), ("1", "", [7])],
)
def test_a_process_with_a_wrong_rank_is_named(
    node: Node, rank: str, mistake: str, watched: list[int]
) -> None:
    node.start(7)
    (Path(node.proc.path) / "7/environ").write_text(f"RANK={rank}\0WORLD_SIZE=2\0")
    discovery = Discovery(node.proc, ProcessTable(node.proc), match={}, host="gpu-1", own_pid=-1)
    assert [each.pid for each in discovery.tick(0.0)] == watched
    found = [(each.reason, each.pids, mistake in each.text) for each in discovery.unwatched]
    assert found == ([("wrong_rank", (7,), True)] if mistake else [])


def test_a_helper_of_a_process_with_a_wrong_rank_is_not_counted(node: Node) -> None:
    for pid, parent in ((7, 1), (8, 7)):
        node.start(pid, parent)
        (Path(node.proc.path) / f"{pid}/environ").write_text("RANK=7\0WORLD_SIZE=2\0")
    discovery = Discovery(node.proc, ProcessTable(node.proc), match={}, host="gpu-1", own_pid=-1)
    discovery.tick(0.0)
    assert [each.pids for each in discovery.unwatched] == [(7,)]


def test_a_rank_that_hangs_delays_no_check_of_the_others(node: Node) -> None:
    node.start(7, hangs="environ")
    node.start(8)
    proc = node.proc
    discovery = Discovery(proc, ProcessTable(proc), match={}, host="gpu-1", own_pid=-1)
    discovery.tick(0.0)
    assert [rank.pid for rank in discovery.tick(1.0)] == [8]
    node.let_go()
    now = iter(range(2, 1000))
    wait_until(lambda: len(discovery.tick(float(next(now)))) == 2, "it is found when it lets go")


def a_target(pid: int) -> Target:
    return Target(rank=pid, pid=pid, start_time=pid, read_page=lambda: None)


def test_a_child_that_hangs_is_said_and_costs_nobody_else_his_dump(node: Node) -> None:
    node.start(7)
    node.start(8, parent=7, hangs="cmdline")
    node.start(9, parent=7)
    taker = a_taker(node.proc, NO_PY_SPY)
    (rank,) = taker.take([a_target(7)], deadline=time.monotonic() + PATIENCE_S).ranks
    stuck, other = sorted(rank.children, key=lambda child: child.pid)
    assert stuck.failure is not None
    assert stuck.failure.kind is FailureKind.TIMEOUT
    assert stuck.command == "pt_data_worker"
    assert other.command == "python"
    assert rank.kernel.state is ProcessState.SLEEPING


def test_a_round_that_hangs_is_sent_with_what_there_is(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.dumps.round.ROUND_GRACE_S", 0.1)
    node.start(7)
    node.start(8, hangs="syscall")
    taker = a_taker(node.proc, NO_PY_SPY)
    ranks = taker.take([a_target(7), a_target(8)], deadline=time.monotonic() + 1.0).ranks
    assert [rank.rank for rank in ranks] == [7, 8]
    assert ranks[0].kernel.state is ProcessState.SLEEPING
    assert ranks[1].kernel.state is ProcessState.OTHER
    assert ranks[1].failure is not None
    assert ranks[1].failure.kind is FailureKind.TIMEOUT
