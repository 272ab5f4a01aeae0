"""One round of a dump: first the kernel state of every rank and child, then Python stacks."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from watchtower_heartbeat.page import PageError, PageView

from agent.children import REAP_S, Abandoned
from agent.dumpers.collectives import read_collectives
from agent.dumpers.kernel_state import KernelTables, read_kernel_wait, read_thread_wait
from agent.dumpers.native_places import PLACES_DEADLINE_S, NativePlaces, PythonRuns
from agent.dumpers.python_stacks import GONE_HELP, PythonStacks, StackDump, failed
from agent.dumpers.source_loops import SourceLoops
from agent.dumpers.watched_descriptors import WATCHED_DEADLINE_S, ThreadId, WatchedDescriptors
from agent.dumps.contents import (
    DEAD,
    LATE_HELP,
    MAX_BATCH_CHILDREN,
    GroupSet,
    Process,
    StackSet,
    Target,
    Tree,
    as_rank_dump,
    children_by_parent,
    descendants,
    is_dumpable,
    may_wait_for_thread,
    unreached,
)
from agent.dumps.turns import PY_SPY_AT_ONCE, ToolTurns
from agent.procfs import Proc, parse_command
from agent.ranks.guarded_reads import GuardedReads
from agent.ranks.launchers import is_python
from agent.ranks.owners import Owners
from agent.ranks.pages import find_page
from watchtower.wire.bounds import MAX_CHILDREN
from watchtower.wire.collectives import GroupLog, ProcessGroup
from watchtower.wire.dumps import FailureKind, KernelWait, RankDump
from watchtower.wire.report import ProcessState
from watchtower.wire.stacks import Stack

log = logging.getLogger(__name__)


def start_steps(
    name: str, at_once: int, steps: Sequence[Callable[[], None]]
) -> list[threading.Thread]:
    """Run all steps in the order given, up to `at_once` at the same time."""
    waiting = deque(steps)

    def work() -> None:
        while True:
            try:
                step = waiting.popleft()
            except IndexError:
                return
            try:
                step()
            except Exception:
                log.exception("a part of a dump failed; the other parts continue")

    threads = [
        threading.Thread(target=work, name=name, daemon=True)
        for _ in range(min(at_once, len(waiting)))
    ]
    for thread in threads:
        thread.start()
    return threads


CHILD_STACKS_PER_RANK = 16
"""Children of one rank that py-spy dumps. For the others there is only the kernel state."""

RECORDS_AT_ONCE = 4
"""Processes asked at the same time. A process that does not answer costs one second, but no CPU."""

ROUND_GRACE_S = 5.0
"""Seconds after the deadline of a round in which a running py-spy may end. Then the round is sent
as it is.
"""

SECOND_SAMPLE_S = PLACES_DEADLINE_S + WATCHED_DEADLINE_S + 3 * REAP_S
"""A sample of other threads ends within this many seconds. With less time left, none is begun."""

MAX_ROUNDS_LEFT_BEHIND = 8
"""Rounds that were sent incomplete because a read in /proc hangs. An owner that has used up its
share of them gets no further round; other owners do.
"""

MAX_OTHER_THREADS = 8
"""Threads of one rank that are sampled beside main: one that trains, and some that load data."""

NOT_SAMPLED: Mapping[int, bool] = MappingProxyType({})
"""No process was sampled between two rounds."""

STUCK_HELP = (
    "its stacks were not read, because its command line could not be read in time: the memory map "
    "of this process, or of another one on this node, is locked. This happens when a process maps "
    "a file on a mount that hangs"
)
READ_NATIVELY = (ProcessState.RUNNING, ProcessState.SLEEPING, ProcessState.IDLE)
"""In other states a read of the memory may hang, or nothing is to be learned from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The result of a round."""

    ranks: tuple[RankDump, ...]
    stacks: tuple[Stack, ...]
    groups: tuple[ProcessGroup, ...] = ()
    group_logs: tuple[GroupLog, ...] = ()


class RoundTaker:
    """Dumps rounds, of several jobs at once if needed. Owners share the turns at py-spy and the
    number of rounds that may hang.
    """

    def __init__(
        self,
        proc: Proc,
        python_stacks: PythonStacks,
        count: Callable[[str], None],
        loops: SourceLoops | None = None,
        native: NativePlaces | None = None,
        watched: WatchedDescriptors | None = None,
        runs: PythonRuns | None = None,
    ) -> None:
        """Without `loops` no source is read, without `native` no native stack, without `watched`
        not what a poll waits for, and without `runs` not who runs Python between rounds.
        """
        self._proc, self._python_stacks, self._count = proc, python_stacks, count
        self._loops, self._native, self._watched, self._runs = loops, native, watched, runs
        self._turns = ToolTurns()
        self._reads = GuardedReads(Owners(proc).find_quietly)
        self._abandoned = Abandoned[threading.Thread](
            MAX_ROUNDS_LEFT_BEHIND, threading.Thread.is_alive
        )
        """Rounds that hang."""

    def take(
        self,
        targets: Sequence[Target],
        *,
        deadline: float,
        owner: str = "",
        children: bool = True,
        ran_python: Mapping[int, bool] = NOT_SAMPLED,
    ) -> Round:
        """Dump all targets of one owner, with their child processes.

        Processes not reached by the deadline are recorded as timeouts. `ran_python`: whether those
        that were sampled since the round before ran Python, by pid.
        """
        trees: list[Tree] = []
        self._fill_in_time(trees, targets, owner, deadline, children)
        for tree in trees:
            if tree.native is not None:
                ran = ran_python.get(tree.process.pid)
                tree.native = replace(tree.native, ran_python=ran)
        trees += [unreached(target, owner) for target in targets[len(trees) :]]
        stacks, groups = StackSet(), GroupSet()
        dumps = tuple(as_rank_dump(tree, stacks, groups) for tree in trees)
        for dump in dumps:
            self._count(dump.failure.kind.value if dump.failure else "ok")
        owned = stacks.owned()
        return Round(
            ranks=dumps,
            stacks=(
                self._loops.fill(owned, deadline, owner)
                if self._loops
                else tuple(stack for stack, _ in owned)
            ),
            groups=groups.groups(),
            group_logs=groups.logs(),
        )

    def find_runs(
        self, targets: Sequence[Target], seconds: float, *, owner: str
    ) -> dict[int, bool]:
        """Return which targets ran Python within the next seconds, by pid, as far as known."""
        if self._runs is None:
            return {}
        return self._runs.find([target.pid for target in targets], seconds, owner)

    def _fill_in_time(
        self,
        into: list[Tree],
        targets: Sequence[Target],
        owner: str,
        deadline: float,
        children: bool,
    ) -> None:
        """Add to `into` what is found until the deadline. A thread that hangs in /proc is
        abandoned.
        """
        trees: list[Tree] = []
        thread = threading.Thread(
            target=self._fill,
            args=(trees, targets, owner, deadline, children),
            name="round",
            daemon=True,
        )
        if self._abandoned.has_room(owner):
            thread.start()
            thread.join(max(0.0, deadline - time.monotonic()) + ROUND_GRACE_S)
            if thread.is_alive():
                log.warning("a round of dumps hangs in /proc: sending it incomplete")
                self._abandoned.add(thread, owner)
        into.extend(trees[: len(targets)])

    def _fill(
        self,
        trees: list[Tree],
        targets: Sequence[Target],
        owner: str,
        deadline: float,
        children: bool,
    ) -> None:
        parents = children_by_parent(self._proc) if children else {}
        ranks = {target.pid for target in targets}
        tables = KernelTables(self._proc)
        limit = min(MAX_CHILDREN, max(1, MAX_BATCH_CHILDREN // max(1, len(targets))))
        for target in targets:
            trees.append(self._read_tree(target, owner, parents, ranks, tables, limit))
        wanted = [tree.process for tree in trees]
        wanted += [each for tree in trees for each in tree.children[:CHILD_STACKS_PER_RANK]]
        wanted.sort(key=self._order)
        asking = start_steps(
            "records",
            RECORDS_AT_ONCE,
            [partial(self._ask, tree, deadline, is_whole=children) for tree in trees],
        )
        dumping = start_steps(
            "py-spy",
            PY_SPY_AT_ONCE,
            [partial(self._dump, each, deadline) for each in wanted if is_dumpable(each)],
        )
        sampling = start_steps("native", 1, [partial(self._sample_native, trees, owner)])
        watching = start_steps("watched", 1, [partial(self._find_watched, wanted, owner, tables)])
        for thread in (*asking, *dumping, *sampling, *watching):
            thread.join()
        if time.monotonic() + SECOND_SAMPLE_S <= deadline + ROUND_GRACE_S:
            self._read_other_threads(trees, owner, tables)

    def _read_other_threads(self, trees: Sequence[Tree], owner: str, tables: KernelTables) -> None:
        """Read where those threads are for which blocked main threads may wait. One may train.

        Only py-spy knows them, so this is a second sample.
        """
        waiting = {tree.process.pid: tree.process for tree in trees if may_wait_for_thread(tree)}
        tids = {
            pid: process.stacks.threads.waited_for(MAX_OTHER_THREADS)
            for pid, process in waiting.items()
            if process.stacks.threads is not None
        }
        wanted = {pid: named for pid, named in tids.items() if named}
        places = self._native.sample_threads(wanted, owner) if self._native else {}
        waits = {
            ThreadId(pid, tid): read_thread_wait(self._proc, pid, tid, tables)
            for pid, named in wanted.items()
            for tid in named
        }
        waits |= self._watched.find(waits, owner, tables) if self._watched else {}
        for pid, named in wanted.items():
            kernels = {tid: waits[ThreadId(pid, tid)] for tid in named}
            waiting[pid].stacks = waiting[pid].stacks.with_waits(places.get(pid, {}), kernels)

    def _find_watched(self, processes: Sequence[Process], owner: str, tables: KernelTables) -> None:
        """Set what the main threads of these processes wait for, if they poll."""
        if self._watched is None:
            return
        by_thread = {ThreadId(each.pid, each.pid): each for each in processes}
        waits = {thread: each.kernel for thread, each in by_thread.items()}
        for thread, wait in self._watched.find(waits, owner, tables).items():
            by_thread[thread].kernel = wait

    def _sample_native(self, trees: Sequence[Tree], owner: str) -> None:
        if self._native is None:
            return
        live = {
            tree.process.pid: tree for tree in trees if tree.process.kernel.state in READ_NATIVELY
        }
        for pid, place in self._native.sample(list(live), owner).items():
            live[pid].native = place

    def _read_tree(
        self,
        target: Target,
        owner: str,
        children: dict[int, list[int]],
        ranks: set[int],
        tables: KernelTables,
        limit: int,
    ) -> Tree:
        stat = self._proc.stat(target.pid)
        process = Process(
            pid=target.pid,
            start_time=target.start_time,
            owner=owner,
            kernel=KernelWait(state=ProcessState.GONE),
        )
        if stat is None or stat.start_time != target.start_time:
            process.stacks = failed(FailureKind.GONE, GONE_HELP)
            return Tree(target=target, view=target.read_page(), process=process, children=[])
        process.kernel = read_kernel_wait(self._proc, target.pid, tables)
        process.command = ["python"]  # py-spy is always tried for a rank
        if process.kernel.state in DEAD:
            process.stacks = failed(FailureKind.GONE, GONE_HELP)
        pids = descendants(target.pid, children, without=ranks)
        found = [self._read_child(pid, owner, tables) for pid in pids[:limit]]
        found.sort(key=lambda child: not is_python(child.command))
        return Tree(target=target, view=target.read_page(), process=process, children=found)

    def _read_child(self, pid: int, owner: str, tables: KernelTables) -> Process:
        stat = self._proc.stat(pid)
        kernel = read_kernel_wait(self._proc, pid, tables)
        started = self._reads.run(pid, lambda: self._proc.started_with(pid))
        if started is not None:
            return Process(
                pid=pid,
                start_time=stat.start_time if stat is not None else 0,
                owner=owner,
                is_child=True,
                kernel=kernel,
                command=parse_command(started.command),
            )
        stacks = failed(FailureKind.TIMEOUT, STUCK_HELP)  # py-spy would hang in the same read
        return Process(
            pid=pid,
            owner=owner,
            is_child=True,
            kernel=kernel,
            command=[self._proc.name(pid)],
            stacks=stacks,
        )

    def _ask(self, tree: Tree, deadline: float, *, is_whole: bool) -> None:
        process = tree.process
        if process.kernel.state not in DEAD:
            # Again, so that its counts of messages are as new as the stack that py-spy reads now.
            tree.view = tree.target.read_page() or tree.view
            if tree.view is None and is_whole:
                tree.view = self._search_page(tree.target)
            tree.records = read_collectives(
                self._proc, process.pid, tree.view, process.kernel, deadline
            )

    def _search_page(self, target: Target) -> PageView | None:
        """Return the page of a rank for which none is known yet.

        Discovery searches the page of a rank that starts for minutes only every minute. If such a
        job hangs in its first steps, its collective logs would be missing.
        """
        found = find_page(self._proc, target.pid, target.start_time).page
        try:
            return found.read() if found is not None else None
        except PageError:
            return None

    def _order(self, process: Process) -> tuple[int, bool]:
        """Return the sort key of a process: how often py-spy was ended on it, then ranks before
        children.
        """
        ended = self._python_stacks.times_ended(process.pid, process.start_time)
        return ended, process.is_child

    def _dump(self, process: Process, deadline: float) -> None:
        # Refused without waiting for a turn, so that the other processes are not delayed.
        refused = self._python_stacks.refuse(process.pid, process.start_time)
        process.stacks = refused or self._dump_in_turn(process, deadline)

    def _dump_in_turn(self, process: Process, deadline: float) -> StackDump:
        with self._turns.take(process.owner, self._order(process), deadline) as has_turn:
            if not has_turn or time.monotonic() >= deadline:
                return failed(FailureKind.TIMEOUT, LATE_HELP)
            return self._python_stacks.dump(process.pid, process.start_time, process.owner)
