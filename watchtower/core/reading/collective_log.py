"""Reads the collective log of one rank in one group: the collectives that it called, entered and
completed."""

from __future__ import annotations

import re
from enum import Enum

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


def has_entered(log: GroupLog | None, number: int) -> Entered:
    """Return whether the rank with this log has entered collective `number` of its group."""
    if log is None:
        return Entered.UNKNOWN
    if max(log.entered, log.completed) >= number:
        return Entered.YES
    return Entered.NO if log.called < number else Entered.UNKNOWN


def find_open_call(log: GroupLog) -> int | None:
    """Return the number of the first collective that the rank called and has not completed.

    None if there is none, or if the log has no count of completed collectives.
    """
    done = max(log.completed, 0)
    return done + 1 if log.called > done and log.completed >= 0 else None


def record_of(log: GroupLog, number: int) -> CollectiveRecord:
    """Return the record of the rank's call `number`; `NO_RECORD` if it is not known."""
    return next((record for record in log.records if record.number == number), NO_RECORD)


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
