"""What the dumps of a generation name by digest: stacks, process groups, logs of collectives.

Each is kept once for all ranks that share it. A name is computed anew from what it names, and what
does not bear its right name is not kept: no node changes what another one's ranks were seen in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from watchtower.wire.collectives import GroupLog, ProcessGroup, make_group_log, name_group
from watchtower.wire.dumps import DumpBatch, RankDump
from watchtower.wire.stacks import Stack, make_stack

MAX_STACKS = 8192
"""Distinct stacks of a generation in memory; beyond it only those of the latest dumps stay. If
those are more, it is looked again when there are twice as many: that takes time with every dump
there is, and must not be done for every batch."""

MAX_GROUP_LOGS = 1_048_576
"""Distinct logs of a generation in memory, likewise: eight for each rank of the largest job."""

LOG_WEIGHT = 4
"""Memory of a log with its records, as a number of frames."""

MEMBERS_PER_FRAME = 100
"""Characters of a group's members that take as much memory as one frame."""


@dataclass(slots=True)
class DumpContents:
    """Stacks, groups and logs by digest or id."""

    stacks: dict[str, Stack] = field(default_factory=dict)
    groups: dict[str, ProcessGroup] = field(default_factory=dict)
    group_logs: dict[str, GroupLog] = field(default_factory=dict)
    weight: int = 0
    """Memory they take, counted in frames of some 200 bytes."""
    _stacks_left: int = 0
    _logs_left: int = 0
    """How many stayed when it was last looked for what nobody names any more."""

    def keep(self, batch: DumpBatch, dumps: Iterable[RankDump]) -> None:
        """Keep what these dumps of a batch name; what nobody names is not kept."""
        dumps = list(dumps)
        named = {digest for dump in dumps for digest in digests_of(dump)}
        for stack in batch.stacks:
            if stack.digest not in named or stack.digest in self.stacks:
                continue
            if make_stack(stack.frames).digest == stack.digest:
                self.stacks[stack.digest] = stack
                self.weight += _weigh_stack(stack)
        named = {digest for dump in dumps for digest in logs_of(dump)}
        # Once for all logs: members may be 100 kB of text, and there may be thousands of logs.
        groups = {group.id: group for group in batch.groups if self._is_right(group)}
        for log in batch.group_logs:
            if log.digest in named and log.digest not in self.group_logs and log.group in groups:
                self._keep_log(log, groups[log.group])

    def _is_right(self, group: ProcessGroup) -> bool:
        if group == self.groups.get(group.id):
            return True
        return group.id == name_group(group.members, group.order, group.library)

    def _keep_log(self, log: GroupLog, group: ProcessGroup) -> None:
        if not _has_right_digest(log):
            return
        self.group_logs[log.digest] = log
        self.weight += LOG_WEIGHT
        if group.id not in self.groups:
            self.groups[group.id] = group
            self.weight += _weigh_group(group)

    def copy(self) -> DumpContents:
        """Copy it, not what it names."""
        return DumpContents(
            dict(self.stacks), dict(self.groups), dict(self.group_logs), self.weight
        )

    @property
    def is_full(self) -> bool:
        """Whether it is time to let go of what no dump names any more."""
        too_many_stacks = len(self.stacks) > max(MAX_STACKS, 2 * self._stacks_left)
        return too_many_stacks or len(self.group_logs) > max(MAX_GROUP_LOGS, 2 * self._logs_left)

    def keep_only(self, dumps: Iterable[RankDump]) -> None:
        """Let go of everything that these dumps do not name."""
        dumps = list(dumps)
        stacks = {digest for dump in dumps for digest in digests_of(dump)}
        logs = {digest for dump in dumps for digest in logs_of(dump)}
        self.stacks = {d: stack for d, stack in self.stacks.items() if d in stacks}
        self.group_logs = {d: log for d, log in self.group_logs.items() if d in logs}
        self._stacks_left, self._logs_left = len(self.stacks), len(self.group_logs)
        groups = {log.group for log in self.group_logs.values()}
        self.groups = {name: group for name, group in self.groups.items() if name in groups}
        self.weight = (
            sum(map(_weigh_stack, self.stacks.values()))
            + sum(map(_weigh_group, self.groups.values()))
            + LOG_WEIGHT * len(self.group_logs)
        )

    def drop(self) -> None:
        """Let go of all; the dumps that named them say only what the kernel knows."""
        self.keep_only(())


def _has_right_digest(log: GroupLog) -> bool:
    again = make_group_log(
        group=log.group,
        called=log.called,
        entered=log.entered,
        completed=log.completed,
        records=log.records,
    )
    return again.digest == log.digest


def _weigh_stack(stack: Stack) -> int:
    return len(stack.frames)


def _weigh_group(group: ProcessGroup) -> int:
    return 1 + len(group.members) // MEMBERS_PER_FRAME


def digests_of(dump: RankDump) -> Iterator[str]:
    """Name every stack of a dump, those of its children included."""
    for threads in (dump.threads, *(child.threads for child in dump.children)):
        for thread in threads:
            yield thread.digest


def logs_of(dump: RankDump) -> tuple[str, ...]:
    """Name every log of collectives of a dump."""
    return dump.collectives.logs if dump.collectives else ()
