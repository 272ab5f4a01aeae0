"""Reads the collective log of one rank in one group: what it called, entered and completed."""

from __future__ import annotations

import re
from enum import Enum

from watchtower.wire.collectives import CollectiveRecord, GroupLog
from watchtower.wire.dumps import RankDump

_SHAPE = re.compile(r"\[[^]]*\]?")
"""A bracket that nothing closes ends with the text, so that no text is searched twice."""

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
"""Operations in which every member gives the same element type and size. In the others sizes may
differ for good reason: the root of a gather, an uneven all_to_all (MPI standard, chapter 6; the
docstrings of torch.distributed)."""

UNEVEN_ON_NCCL = frozenset({"all_gather", "allgather", "reduce_scatter"})
"""With lists of tensors torch allows these other sizes on NCCL, where it makes broadcasts or
reduces of them (ProcessGroupNCCL::allgather, reduce_scatter); element types must be equal."""

CallKind = tuple[str, str]
"""Operation, and signature where all members must give the same; else empty."""


class Entered(Enum):
    """Whether a rank is inside a collective, or past it."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """It has no log, or its library only records that the call was made."""


def has_entered(log: GroupLog | None, number: int) -> Entered:
    """Return whether the rank with this log has entered collective `number` of its group."""
    if log is None:
        return Entered.UNKNOWN
    if max(log.entered, log.completed) >= number:
        return Entered.YES
    return Entered.NO if log.called < number else Entered.UNKNOWN


def find_open_call(log: GroupLog) -> int | None:
    """Return the number of the first collective that the rank called and that is not over."""
    done = max(log.completed, 0)
    return done + 1 if log.called > done and log.completed >= 0 else None


def record_of(log: GroupLog, number: int) -> CollectiveRecord:
    """Return what the rank called as `number`, without a name when that is not known."""
    return next((record for record in log.records if record.number == number), NO_RECORD)


def compared(record: CollectiveRecord, library: str) -> CallKind:
    """Return what must be equal on all members of a group of this library for the call to work."""
    if record.operation not in SAME_ON_ALL:
        return record.operation, ""
    if library == "nccl" and record.operation in UNEVEN_ON_NCCL:
        return record.operation, _SHAPE.sub("", record.signature)
    return record.operation, record.signature


def last_with_logs(dumps: tuple[RankDump, ...]) -> RankDump | None:
    """Return the newest dump that holds collective logs; a later sample may have failed."""
    for dump in reversed(dumps):
        found = dump.collectives
        if found is not None and (found.logs or found.peers or not found.failure):
            return dump
    return None


def advances(dumps: tuple[RankDump, ...]) -> bool:
    """Return whether the logs changed between the last two dumps that have any."""
    taken = [dump.collectives for dump in dumps if dump.collectives and dump.collectives.logs]
    return len(taken) > 1 and (taken[-1].logs, taken[-1].peers) != (taken[-2].logs, taken[-2].peers)
