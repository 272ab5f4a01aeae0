"""One round of a dump: the kernel's words of every rank and child first, then Python stacks."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from agent.config import (
    CHILD_STACKS_PER_RANK,
    MAX_BATCH_CHILDREN,
    MAX_BATCH_FRAMES,
    MAX_BATCH_THREADS,
    MAX_ROUNDS_LEFT_BEHIND,
    PY_SPY_AT_ONCE,
    ROUND_GRACE_S,
)
from agent.dumpers.kernel_state import read_kernel_wait
from agent.dumpers.python_stacks import GONE_HELP, PythonStacks, StackDump, failed
from agent.dumpers.sockets import SocketTables
from agent.launchers import is_python
from agent.memory_reader import MemoryReader
from agent.procfs import Proc, parse_command, printable
from watchtower.wire.bounds import MAX_CHILDREN, MAX_NAME, MAX_STACKS
from watchtower.wire.dumps import ChildDump, FailureKind, KernelWait, RankDump, ThreadDump
from watchtower.wire.report import ProcessState
from watchtower.wire.stacks import Stack

log = logging.getLogger(__name__)

LATE_HELP = "the round of dumps had no time left for this process"
STUCK_HELP = (
    "its command line cannot be read in time, so that its stacks were not tried: it, or another "
    "one of this node, holds its memory map, as while it maps a file on a mount that hangs"
)
DEAD = (ProcessState.ZOMBIE, ProcessState.GONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A rank to dump."""

    rank: int
    pid: int
    start_time: int
    read_step: Callable[[], int]


@dataclass(slots=True, kw_only=True, eq=False)
class _Process:
    """What one process gave so far."""

    pid: int
    kernel: KernelWait
    command: list[str] = field(default_factory=list)
    stacks: StackDump = field(default_factory=StackDump)


@dataclass(slots=True, kw_only=True, eq=False)
class _Tree:
    target: Target
    step: int
    process: _Process
    children: list[_Process]


class RoundTaker:
    """Takes rounds, of several jobs at once if need be, with two py-spy at a time in all."""

    def __init__(
        self, proc: Proc, python_stacks: PythonStacks, count: Callable[[str], None]
    ) -> None:
        self._proc, self._python_stacks, self._count = proc, python_stacks, count
        self._turns = threading.Semaphore(PY_SPY_AT_ONCE)
        self._memory = MemoryReader(proc)
        self._left_behind: set[threading.Thread] = set()

    def take(
        self, targets: Sequence[Target], *, deadline: float
    ) -> tuple[tuple[RankDump, ...], tuple[Stack, ...]]:
        """Dump all targets; what is not reached by the deadline is a timeout."""
        trees: list[_Tree] = []
        self._fill_in_time(trees, targets, deadline)
        trees += [_unreached(target) for target in targets[len(trees) :]]
        stacks = _StackSet()
        dumps = tuple(_as_rank_dump(tree, stacks) for tree in trees)
        for dump in dumps:
            self._count(dump.failure.kind.value if dump.failure else "ok")
        return dumps, stacks.all()

    def _fill_in_time(self, into: list[_Tree], targets: Sequence[Target], deadline: float) -> None:
        """Fill in what is found until the deadline; a thread that hangs in /proc is left behind."""
        trees: list[_Tree] = []
        thread = threading.Thread(
            target=self._fill, args=(trees, targets, deadline), name="round", daemon=True
        )
        self._left_behind = {each for each in self._left_behind if each.is_alive()}
        if len(self._left_behind) < MAX_ROUNDS_LEFT_BEHIND:
            thread.start()
            thread.join(max(0.0, deadline - time.monotonic()) + ROUND_GRACE_S)
            if thread.is_alive():
                log.warning("a round of dumps hangs in /proc: what there is of it is sent")
                self._left_behind.add(thread)
        into.extend(trees[: len(targets)])

    def _fill(self, trees: list[_Tree], targets: Sequence[Target], deadline: float) -> None:
        children = children_by_parent(self._proc)
        ranks = {target.pid for target in targets}
        tables = SocketTables(self._proc)
        room = min(MAX_CHILDREN, max(1, MAX_BATCH_CHILDREN // max(1, len(targets))))
        for target in targets:
            trees.append(self._look(target, children, ranks, tables, room))
        wanted = [tree.process for tree in trees]
        for tree in trees:
            wanted.extend(tree.children[:CHILD_STACKS_PER_RANK])
        self._dump_stacks([each for each in wanted if is_dumpable(each)], deadline)

    def _look(
        self,
        target: Target,
        children: dict[int, list[int]],
        ranks: set[int],
        tables: SocketTables,
        room: int,
    ) -> _Tree:
        stat = self._proc.stat(target.pid)
        process = _Process(pid=target.pid, kernel=KernelWait(state=ProcessState.GONE))
        if stat is None or stat.start_time != target.start_time:
            process.stacks = failed(FailureKind.GONE, GONE_HELP)
            return _Tree(target=target, step=target.read_step(), process=process, children=[])
        process.kernel = read_kernel_wait(self._proc, target.pid, tables)
        process.command = ["python"]  # a rank is always tried
        if process.kernel.state in DEAD:
            process.stacks = failed(FailureKind.GONE, GONE_HELP)
        pids = descendants(target.pid, children, without=ranks)
        found = [self._look_at_child(pid, tables) for pid in pids[:room]]
        found.sort(key=lambda child: not is_python(child.command))
        return _Tree(target=target, step=target.read_step(), process=process, children=found)

    def _look_at_child(self, pid: int, tables: SocketTables) -> _Process:
        kernel, started = read_kernel_wait(self._proc, pid, tables), self._memory.read(pid)
        if started is not None:
            return _Process(pid=pid, kernel=kernel, command=parse_command(started.command))
        stacks = failed(FailureKind.TIMEOUT, STUCK_HELP)  # py-spy would hang where we did
        return _Process(pid=pid, kernel=kernel, command=[self._proc.name(pid)], stacks=stacks)

    def _dump_stacks(self, processes: list[_Process], deadline: float) -> None:
        """Ranks come first in the list, so that children never cost a rank its turn."""
        waiting = list(reversed(processes))
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    if not waiting:
                        return
                    process = waiting.pop()
                process.stacks = self._dump_in_turn(process.pid, deadline)

        threads = [
            threading.Thread(target=work, name="py-spy", daemon=True)
            for _ in range(min(PY_SPY_AT_ONCE, len(processes)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _dump_in_turn(self, pid: int, deadline: float) -> StackDump:
        if not self._turns.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return failed(FailureKind.TIMEOUT, LATE_HELP)
        try:
            if time.monotonic() >= deadline:
                return failed(FailureKind.TIMEOUT, LATE_HELP)
            return self._python_stacks.dump(pid)
        finally:
            self._turns.release()


def _unreached(target: Target) -> _Tree:
    late = failed(FailureKind.TIMEOUT, LATE_HELP)
    process = _Process(pid=target.pid, kernel=KernelWait(), stacks=late)
    return _Tree(target=target, step=target.read_step(), process=process, children=[])


class _StackSet:
    """Each distinct stack once, within the bounds of a batch."""

    def __init__(self) -> None:
        self._stacks: dict[str, Stack] = {}
        self._frames = self._threads = 0

    def add(self, dump: StackDump) -> tuple[ThreadDump, ...]:
        """Take in the stacks of a process; return the threads whose stack fits."""
        if dump.threads is None:
            return ()
        for stack in dump.threads.stacks:
            frames = self._frames + len(stack.frames)
            full = len(self._stacks) >= MAX_STACKS or frames > MAX_BATCH_FRAMES
            if stack.digest not in self._stacks and not full:
                self._stacks[stack.digest] = stack
                self._frames = frames
        room = max(0, MAX_BATCH_THREADS - self._threads)
        fits = [each for each in dump.threads.threads if each.digest in self._stacks][:room]
        self._threads += len(fits)
        return tuple(fits)

    def all(self) -> tuple[Stack, ...]:
        """Return the stacks taken in."""
        return tuple(self._stacks.values())


def is_dumpable(process: _Process) -> bool:
    """Say whether py-spy has a chance: a living Python process that has no failure yet."""
    return (
        is_python(process.command)
        and process.kernel.state not in DEAD
        and process.stacks.failure is None
    )


def children_by_parent(proc: Proc) -> dict[int, list[int]]:
    """Look at every process once: what it costs is paid only when something hangs."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid in sorted(proc.pids()):
        if stat := proc.stat(pid):
            children[stat.ppid].append(pid)
    return children


def descendants(pid: int, children: dict[int, list[int]], *, without: set[int]) -> list[int]:
    """Return children, theirs and so on, nearest first; other ranks and theirs are left out."""
    found: list[int] = []
    level = [pid]
    while level and len(found) <= MAX_CHILDREN:
        level = [child for parent in level for child in children.get(parent, ())]
        level = [child for child in level if child not in without]
        found.extend(level)
    return found


def _as_rank_dump(tree: _Tree, stacks: _StackSet) -> RankDump:
    found = tree.process.stacks  # once: a round that was left behind may still put something here
    dump = RankDump(
        rank=tree.target.rank,
        pid=tree.target.pid,
        start_time=tree.target.start_time,
        kernel=tree.process.kernel,
        step=tree.step,
        threads=stacks.add(found),
        failure=found.failure,
    )
    return replace(dump, children=tuple(_as_child_dump(each, stacks) for each in tree.children))


def _as_child_dump(child: _Process, stacks: _StackSet) -> ChildDump:
    found = child.stacks
    return ChildDump(
        pid=child.pid,
        kernel=child.kernel,
        command=printable(" ".join(child.command), MAX_NAME),
        threads=stacks.add(found),
        failure=found.failure,
    )
