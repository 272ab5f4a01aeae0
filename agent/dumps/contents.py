"""What a round of dumps has read of each rank and its children, and the batch that it becomes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from agent.dumpers.dumper import DEAD, LATE_HELP, Process, RankRecords, Target, Tree
from agent.dumpers.flight_recorder import LATE
from agent.procfs import Proc
from agent.ranks.launchers import name_program
from watchtower.readers.canonical import StackDump, failed
from watchtower.wire.bounds import (
    MAX_CHILDREN,
    MAX_GROUPS,
    MAX_GROUPS_PER_RANK,
    MAX_NAME,
    MAX_STACKS,
    MAX_TEXT,
)
from watchtower.wire.collectives import GroupLog, ProcessGroup, RankCollectives, change_group_log
from watchtower.wire.dumps import (
    ChildDump,
    FailureKind,
    KernelWait,
    RankDump,
    ThreadDump,
)
from watchtower.wire.stacks import Stack
from watchtower.writing.printable import printable


def children_by_parent(proc: Proc) -> dict[int, list[int]]:
    """Return the child pids by parent pid. Reads every process, so it runs only for a dump."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid in sorted(proc.pids()):
        if stat := proc.stat(pid):
            children[stat.ppid].append(pid)
    return children


def descendants(pid: int, children: dict[int, list[int]], *, without: set[int]) -> list[int]:
    """Return all descendants, nearest first, without other ranks and their descendants."""
    found: list[int] = []
    level = [pid]
    while level and len(found) <= MAX_CHILDREN:
        level = [child for parent in level for child in children.get(parent, ())]
        level = [child for child in level if child not in without]
        found.extend(level)
    return found


MAX_BATCH_CHILDREN = 4096
MAX_BATCH_THREADS = 50_000
"""Threads in one batch, about 10 MB. The ranks of a node share them evenly."""

MAX_BATCH_FRAMES = 50_000
"""Frames in one batch, about 8 MB. Ranks hang in the same few places: real batches have
hundreds.
"""

MAX_BATCH_LOG_BYTES = 3 << 20
"""Bytes of collective logs in one batch. A log with its last calls has 1 kB, and ranks share many
logs: 8 ranks in 16 groups have 120 kB. Logs over the limit are sent without the calls, 150 bytes
each.
"""

MAX_BATCH_MEMBERS_TEXT = 1 << 20
"""Characters for the members of all groups in one batch. Spans are short; irregular subsets are
long.
"""

LOG_BYTES, CALL_BYTES = 150, 60
"""Bytes of a log and of each of its calls in a message, without the texts of the calls."""


class StackSet:
    """Each distinct stack once, within the limits of a batch."""

    def __init__(self) -> None:
        self._stacks: dict[str, tuple[Stack, int]] = {}
        self._frames = self._threads = 0

    def add(self, dump: StackDump, pid: int) -> tuple[ThreadDump, ...]:
        """Add the stacks of a process; return the threads whose stack fits."""
        if dump.threads is None:
            return ()
        for stack in dump.threads.stacks:
            frames = self._frames + len(stack.frames)
            full = len(self._stacks) >= MAX_STACKS or frames > MAX_BATCH_FRAMES
            if stack.digest not in self._stacks and not full:
                self._stacks[stack.digest] = stack, pid
                self._frames = frames
        room = max(0, MAX_BATCH_THREADS - self._threads)
        fits = [each for each in dump.threads.threads if each.digest in self._stacks][:room]
        self._threads += len(fits)
        return tuple(fits)

    def owned(self) -> tuple[tuple[Stack, int], ...]:
        """Return the added stacks, each with the pid of a process that was in it."""
        return tuple(self._stacks.values())


class GroupSet:
    """The groups and logs of a batch, each distinct one once, within the limits of a batch."""

    def __init__(self) -> None:
        self._groups: dict[str, ProcessGroup] = {}
        self._logs: dict[str, GroupLog] = {}
        self._log_bytes = self._members_text = 0

    def add(self, found: RankRecords | None) -> RankCollectives | None:
        """Add the collective logs of one rank. The result reports how many did not fit."""
        if found is None:
            return None
        taken = [self._take(group, log) for group, log in found.logs[:MAX_GROUPS_PER_RANK]]
        digests = {log.digest: None for log in taken if log is not None}
        oldest = (log.digest for log in taken if log is not None and log.group == found.oldest_open)
        failures = list(found.failures)
        if left_out := len(found.logs) - len(digests):
            failures.append(f"{left_out} process groups were dropped: there are too many")
        return RankCollectives(
            logs=tuple(digests),
            peers=found.peers,
            oldest_open=next(oldest, ""),
            failure="; ".join(failures)[:MAX_TEXT],
        )

    def groups(self) -> tuple[ProcessGroup, ...]:
        """Return the groups of the added logs."""
        return tuple(self._groups.values())

    def logs(self) -> tuple[GroupLog, ...]:
        """Return the added logs."""
        return tuple(self._logs.values())

    def _take(self, group: ProcessGroup, log: GroupLog) -> GroupLog | None:
        """Add a log and return it; without its calls if these do not fit; None if nothing fits."""
        for version in (log, change_group_log(log, records=())):
            if version.digest in self._logs:
                return version
            size = self._log_bytes + _size_of(version)
            text = self._members_text
            text += len(group.members) if group.id not in self._groups else 0
            full = (
                len(self._logs) >= MAX_GROUPS
            )  # each log has one group, so there are not more groups
            if not full and size <= MAX_BATCH_LOG_BYTES and text <= MAX_BATCH_MEMBERS_TEXT:
                self._log_bytes, self._members_text = size, text
                self._logs[version.digest] = version
                self._groups.setdefault(group.id, group)
                return version
        return None


def _size_of(log: GroupLog) -> int:
    """Return the approximate bytes of a log in a message."""
    texts = "".join(each.operation + each.signature for each in log.records)
    return LOG_BYTES + CALL_BYTES * len(log.records) + len(texts.encode("utf-8", "replace"))


def unreached(target: Target, owner: str) -> Tree:
    """Return a rank that the round did not reach in time."""
    late = failed(FailureKind.TIMEOUT, LATE_HELP)
    process = Process(pid=target.pid, owner=owner, kernel=KernelWait(), stacks=late)
    return Tree(target=target, view=target.read_page(), process=process, children=[])


def as_rank_dump(tree: Tree, stacks: StackSet, groups: GroupSet) -> RankDump:
    """Return the dump of a rank, whose stacks and collective logs are added to those of the
    batch.
    """
    found = tree.process.stacks  # read once: an abandoned round may still change it
    dump = RankDump(
        rank=tree.target.rank,
        pid=tree.target.pid,
        start_time=tree.target.start_time,
        kernel=tree.process.kernel,
        step=max(tree.view.step, -1) if tree.view is not None else -1,
        threads=stacks.add(found, tree.process.pid),
        failure=found.failure,
        collectives=groups.add(tree.records or _unread_records(tree)),
        **tree.evidence,
    )
    return replace(dump, children=tuple(_as_child_dump(each, stacks) for each in tree.children))


def _unread_records(tree: Tree) -> RankRecords | None:
    """Return that the collective log of a rank was not read, if the rank has one."""
    view = tree.view
    has_log = view is not None and bool(view.record_socket or view.transfers)
    is_dead = tree.process.kernel.state in DEAD
    return RankRecords(failures=(LATE,)) if has_log and not is_dead else None


def _as_child_dump(child: Process, stacks: StackSet) -> ChildDump:
    found = child.stacks
    return ChildDump(
        pid=child.pid,
        kernel=child.kernel,
        command=printable(name_program(child.command), MAX_NAME),
        threads=stacks.add(found, child.pid),
        failure=found.failure,
    )
