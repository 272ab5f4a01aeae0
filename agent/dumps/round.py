"""One round of a dump: first the kernel state of every rank and child, then what dumpers read."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from agent.children import Abandoned, ChildRunner
from agent.dumpers.collectives import CollectiveLogs
from agent.dumpers.connections import Connections
from agent.dumpers.dumper import (
    DEAD,
    ROUND_GRACE_S,
    Dumper,
    Process,
    RanksOfRound,
    Target,
    Tree,
)
from agent.dumpers.kernel_state import KernelTables, read_kernel_wait
from agent.dumpers.native_places import NativePlaces
from agent.dumpers.nccl_ras import NcclRas
from agent.dumpers.other_threads import OtherThreads
from agent.dumpers.outputs import Outputs
from agent.dumpers.python_stacks import GONE_HELP, PythonStacks
from agent.dumpers.set_up import SetUp
from agent.dumpers.software import SoftwareVersions
from agent.dumpers.source_loops import SourceLoops
from agent.dumpers.watchdogs import Watchdogs
from agent.dumpers.watched_descriptors import WatchedDescriptors
from agent.dumpers.written_logs import RecorderFiles, WrittenLogs
from agent.dumps.contents import (
    MAX_BATCH_CHILDREN,
    GroupSet,
    StackSet,
    as_rank_dump,
    children_by_parent,
    descendants,
    unreached,
)
from agent.procfs import Proc, parse_command
from agent.ranks.guarded_reads import GuardedReads
from agent.ranks.launchers import is_python
from agent.ranks.owners import Owners
from watchtower.readers.canonical import failed
from watchtower.wire.bounds import MAX_CHILDREN
from watchtower.wire.collectives import GroupLog, ProcessGroup
from watchtower.wire.dumps import FailureKind, KernelWait, RankDump
from watchtower.wire.report import ProcessState
from watchtower.wire.stacks import Stack

log = logging.getLogger(__name__)


def start(dumper: Dumper, ranks: RanksOfRound) -> list[threading.Thread]:
    """Start the steps of a dumper and return their threads. Its errors are logged."""
    waiting = deque(dumper.plan(ranks))

    def work() -> None:
        while True:
            try:
                step = waiting.popleft()
            except IndexError:
                return
            try:
                step()
            except Exception:
                log.exception("%s: a part of a dump failed; the others continue", dumper.name)

    threads = [
        threading.Thread(target=work, name=dumper.name, daemon=True)
        for _ in range(min(dumper.at_once, len(waiting)))
    ]
    for thread in threads:
        thread.start()
    return threads


MAX_ROUNDS_LEFT_BEHIND = 8
"""Rounds that were sent incomplete because a read in /proc hangs. An owner that has used up its
share of them gets no further round; other owners do.
"""

STUCK_HELP = (
    "its stacks were not read, because its command line could not be read in time: the memory map "
    "of this process, or of another one on this node, is locked. This happens when a process maps "
    "a file on a mount that hangs"
)


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
        dumpers: Sequence[Dumper],
        count: Callable[[str], None],
        loops: SourceLoops | None = None,
    ) -> None:
        """`count` gets the result of each rank: "ok", or the kind of its failure. Without `loops`
        no source is read.
        """
        self._proc, self._dumpers, self._count, self._loops = proc, dumpers, count, loops
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
        is_sample: bool = False,
    ) -> Round:
        """Dump all targets of one owner, with their child processes unless it is a sample.

        Processes not reached by the deadline are recorded as timeouts.
        """
        trees: list[Tree] = []
        self._fill_in_time(trees, targets, owner, deadline, is_sample)
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

    def _fill_in_time(
        self,
        into: list[Tree],
        targets: Sequence[Target],
        owner: str,
        deadline: float,
        is_sample: bool,
    ) -> None:
        """Add to `into` what is found until the deadline. A thread that hangs in /proc is
        abandoned.
        """
        trees: list[Tree] = []
        thread = threading.Thread(
            target=self._fill,
            args=(trees, targets, owner, deadline, is_sample),
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
        is_sample: bool,
    ) -> None:
        parents = {} if is_sample else children_by_parent(self._proc)
        ranks = {target.pid for target in targets}
        tables = KernelTables(self._proc)
        limit = min(MAX_CHILDREN, max(1, MAX_BATCH_CHILDREN // max(1, len(targets))))
        for target in targets:
            trees.append(self._read_tree(target, owner, parents, ranks, tables, limit))
        read = RanksOfRound(
            trees=trees, owner=owner, deadline=deadline, tables=tables, is_sample=is_sample
        )
        for needs_stacks in (False, True):
            dumpers = [each for each in self._dumpers if each.needs_stacks == needs_stacks]
            running = [start(dumper, read) for dumper in dumpers]
            for thread in chain.from_iterable(running):
                thread.join()

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


def make_taker(
    proc: Proc,
    runner: ChildRunner,
    stacks: PythonStacks,
    count: Callable[[str], None],
    *,
    read_source: bool,
    outputs: Outputs | None = None,
) -> RoundTaker:
    """Return what takes the rounds of an agent or a snapshot, with all dumpers in order.

    Without `outputs` no output is read.
    """
    places, watched = NativePlaces(proc, runner), WatchedDescriptors(proc, runner)
    dumpers = (
        CollectiveLogs(proc),
        Connections(proc),
        stacks,
        places,
        watched,
        OtherThreads(proc, places, watched),
        SoftwareVersions(proc, runner),
        Watchdogs(proc, places),
        SetUp(proc),
        WrittenLogs(runner, outputs, NcclRas(proc)),
        RecorderFiles(runner, outputs),
    )
    return RoundTaker(proc, dumpers, count, SourceLoops(proc, runner) if read_source else None)
