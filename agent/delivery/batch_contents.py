"""The parts of a batch that its ranks share: stacks, process groups, collective logs."""

from __future__ import annotations

from agent.dumpers.collectives import RankRecords
from agent.dumpers.python_stacks import StackDump
from watchtower.wire.bounds import MAX_GROUPS, MAX_GROUPS_PER_RANK, MAX_STACKS, MAX_TEXT
from watchtower.wire.collectives import GroupLog, ProcessGroup, RankCollectives, change_group_log
from watchtower.wire.dumps import ThreadDump
from watchtower.wire.stacks import Stack

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
