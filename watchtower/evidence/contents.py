"""The stacks, process groups and collective logs that dumps refer to by digest.

Each is stored once for all ranks that share it. Every digest is computed again from its content,
and content with a wrong digest is dropped. Otherwise a node could replace the stacks of ranks on
another node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from watchtower.wire.collectives import GroupLog, ProcessGroup, change_group_log, name_group
from watchtower.wire.dumps import DumpBatch, RankDump
from watchtower.wire.stacks import Stack, make_stack


@dataclass(slots=True)
class DumpContents:
    """Stacks and logs by digest, groups by id."""

    stacks: dict[str, Stack] = field(default_factory=dict)
    groups: dict[str, ProcessGroup] = field(default_factory=dict)
    group_logs: dict[str, GroupLog] = field(default_factory=dict)

    def add(self, batch: DumpBatch, dumps: Iterable[RankDump]) -> None:
        """Add the contents of a batch that these dumps refer to; skip all others."""
        dumps = list(dumps)
        named = {digest for dump in dumps for digest in digests_of(dump)}
        for stack in batch.stacks:
            if stack.digest not in named or stack.digest in self.stacks:
                continue
            if make_stack(stack.frames).digest == stack.digest:
                self.stacks[stack.digest] = stack
        named = {digest for dump in dumps for digest in logs_of(dump)}
        # Each group is checked once, not once per log: its members may be 100 kB of text, and
        # there may be thousands of logs.
        groups = {group.id: group for group in batch.groups if self._is_right(group)}
        for log in batch.group_logs:
            if log.digest in named and log.digest not in self.group_logs and log.group in groups:
                self._keep_log(log, groups[log.group])

    def _is_right(self, group: ProcessGroup) -> bool:
        if group == self.groups.get(group.id):
            return True
        return group.id == name_group(group.members, group.order, group.library)

    def _keep_log(self, log: GroupLog, group: ProcessGroup) -> None:
        if change_group_log(log).digest != log.digest:
            return
        self.group_logs[log.digest] = log
        self.groups.setdefault(group.id, group)


def digests_of(dump: RankDump) -> Iterator[str]:
    """Yield the digest of every stack of a dump, including those of its child processes."""
    for threads in (dump.threads, *(child.threads for child in dump.children)):
        for thread in threads:
            yield thread.digest


def logs_of(dump: RankDump) -> tuple[str, ...]:
    """Return the digests of all collective logs of a dump."""
    return dump.collectives.logs if dump.collectives else ()
