"""Reads the collective log of one rank in one group: the collectives that it called, entered and
left.

A log is not a prefix. Some calls have no record, and some records are never marked as over. So
readers ask for one call, and the answer may be that it is unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from watchtower.wire.bounds import MAX_UNKNOWN_CALLS
from watchtower.wire.collectives import CollectiveRecord, GroupLog
from watchtower.wire.dumps import RankDump

_SHAPE = re.compile(r"\[[^]]*\]?")
"""The closing bracket is optional. Otherwise a text with many open brackets would be searched again
for each of them."""

NO_RECORD = CollectiveRecord(number=0, operation="")

SAME_ON_ALL = frozenset(
    {
        "all_reduce",
        "allreduce",
        "_allreduce_base",
        "all_gather",
        "allgather",
        "_all_gather_base",
        "_allgather_base",
        "all_gather_into_tensor",
        "broadcast",
        "reduce",
        "reduce_scatter",
        "_reduce_scatter_base",
        "reduce_scatter_tensor",
        "allreduce_coalesced",
    }
)
"""Operations in which all members must pass the same element type and size. In other operations
sizes may differ: at the root of a gather, or in an uneven all_to_all (MPI standard, chapter 6; the
docstrings of torch.distributed)."""

NCCL = "nccl"
"""The library whose collectives are queued on GPUs."""

UNEVEN_ON_NCCL = frozenset({"all_gather", "allgather", "reduce_scatter"})
"""With lists of tensors, torch allows different sizes in these operations on NCCL. It performs them
as broadcasts or reduces (ProcessGroupNCCL::allgather, reduce_scatter). Element types must be
equal."""

CallKind = tuple[str, str]
"""Operation, and the signature if all members must pass the same one; else an empty string."""


class Entered(Enum):
    """Whether a rank has entered a collective: it is inside it, or has left it."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """The rank has no log, or its library records only that the call was made."""


class Over(Enum):
    """Whether a collective that a rank called is over for it: it has left the collective."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """The log has a hole here: no record of the call, or one that does not show its end."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A collective that a rank waits in."""

    number: int
    certain: bool
    """False if only a rank that is missing there shows that it is not over."""


@dataclass(frozen=True, slots=True)
class CallLog:
    """What one log shows about the calls of a rank in one group, call by call."""

    _log: GroupLog

    @property
    def digest(self) -> str:
        """Ranks that have called the same have the same log."""
        return self._log.digest

    @property
    def group(self) -> str:
        """The id of the group."""
        return self._log.group

    @property
    def called(self) -> int:
        """The number of the last collective that the rank called; 0 before the first."""
        return self._log.called

    @property
    def records(self) -> tuple[CollectiveRecord, ...]:
        """The most recent calls that have a record, ascending by number."""
        return self._log.records

    @property
    def timeout_s(self) -> float:
        """Seconds after which the library gives up the last call; 0 if that is not known."""
        return self._log.timeout_s

    @property
    def has_hole(self) -> bool:
        """Whether it is unknown of some call whether it is over."""
        return bool(self._log.unknown)

    @property
    def may_wait_in_hole(self) -> bool:
        """Whether the rank may wait in a call of which it is unknown whether it is over.

        If its last call is over, it has gone on from the earlier ones.
        """
        return self.has_hole and self.is_over(self.called) is not Over.YES

    @property
    def may_wait(self) -> bool:
        """Whether some call may not be over."""
        return self.has_hole or self._log.called > self._log.completed >= 0

    def record_of(self, number: int) -> CollectiveRecord:
        """Return the record of call `number`; `NO_RECORD` if it is not known."""
        return next((record for record in self.records if record.number == number), NO_RECORD)

    def has_entered(self, number: int) -> Entered:
        """Return whether the rank has entered collective `number`."""
        if number > self.called:
            return Entered.NO
        if self._may_be_unknown(number) and self.record_of(number) is NO_RECORD:
            return Entered.UNKNOWN  # it may have called something else
        known = max(self._log.entered, self._log.completed) >= number
        return Entered.YES if known else Entered.UNKNOWN

    def is_over(self, number: int) -> Over:
        """Return whether call `number` is over. A call that was not made is not over."""
        if number > self.called or self._log.completed < 0:
            return Over.NO
        if self._may_be_unknown(number):
            return Over.UNKNOWN
        if number <= self._log.completed:
            return Over.YES
        return Over.NO

    def count_over(self, number: int) -> int:
        """Return how many calls are over from call `number` on; 0 if that one is not over."""
        is_over = self.is_over(number) is Over.YES
        return self._log.completed - number + 1 if is_over else 0

    def find_open_call(self, reached: int) -> OpenCall | None:
        """Return the call that the rank waits in; None if the log shows none.

        `reached`: the number of the last call that all members of the group have made. All members
        have come to the calls up to it. If one of these is open and a later one too, it may be a
        hole: the rank waits in the later one in any case. A call of which nothing shows that it is
        not over counts only if some member has not come to it.
        """
        opened = self._open_numbers()
        awaited = [number for number in opened if number > reached]
        if awaited and self._begins_at_once:
            return OpenCall(awaited[0], certain=True)
        if opened and not self._begins_at_once:
            return OpenCall(opened[0], certain=True)
        doubtful = next((number for number in self._log.unknown if number > reached), None)
        if doubtful is not None:
            return OpenCall(doubtful, certain=False)
        return OpenCall(opened[0], certain=True) if opened else None

    @property
    def _begins_at_once(self) -> bool:
        """Whether a call begins where it is made, so that one does not wait for another."""
        return self._log.entered >= self._log.called

    def _may_be_unknown(self, number: int) -> bool:
        """Return whether nothing shows if a call is over. A full list has only the newest of these
        calls, so that each earlier one may be unknown, too, except the first that is open.
        """
        unknown = self._log.unknown
        if number in unknown or len(unknown) < MAX_UNKNOWN_CALLS:
            return number in unknown
        return number < unknown[0] and number != self._log.completed + 1

    def _open_numbers(self) -> list[int]:
        if not self._log.called > self._log.completed >= 0:
            return []
        first = self._log.completed + 1
        later = (record.number for record in self.records if record.number > first)
        return [first, *(number for number in later if self.is_over(number) is Over.NO)]


def compared(record: CollectiveRecord, library: str) -> CallKind:
    """Return the part of a call that must be equal on all members of a group of this library."""
    if record.operation not in SAME_ON_ALL:
        return record.operation, ""
    if library == NCCL and record.operation in UNEVEN_ON_NCCL:
        return record.operation, _SHAPE.sub("", record.signature)
    return record.operation, record.signature


def last_with_logs(dumps: tuple[RankDump, ...]) -> RankDump | None:
    """Return the newest dump whose collective logs were read; a later attempt may have failed."""
    for dump in reversed(dumps):
        found = dump.collectives
        if found is not None and (found.logs or found.peers or not found.failure):
            return dump
    return None


def advances(dumps: tuple[RankDump, ...]) -> bool:
    """Return whether the logs changed between the last two dumps that have logs."""
    taken = [dump.collectives for dump in dumps if dump.collectives and dump.collectives.logs]
    return len(taken) > 1 and (taken[-1].logs, taken[-1].peers) != (taken[-2].logs, taken[-2].peers)
