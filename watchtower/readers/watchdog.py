"""Lines of torch's watchdog about collectives of NCCL that did not end.

Shapes by version of torch:

* all: `[Rank R] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=N, OpType=NAME, ...,
  Timeout(ms)=N) ran for N milliseconds before timing out`. Until 2.0 without NumelIn and NumelOut.
* 2.3, 2.4: `[PG 3 Rank R] ...`; from 2.5 on: `[PG ID 0 PG GUID 0(default_pg) Rank R] ...`
* 2.3 to 2.5: `... at NCCL work: N, last enqueued NCCL work: N, last completed NCCL work: N`
* from 2.6 on: `failure detected by watchdog at work sequence id: N PG status: last enqueued work:
  N, last completed work: N`

R is the rank in the group. From 2.2 on, a prefix has the global rank. Numbers count per group. A
rank that waits has enqueued a collective; whether it has started is not known. Numbers of work may
count sends, too: those that contradict each other are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from watchtower.readers.findings import (
    DEFAULT_GROUP,
    UNKNOWN,
    CallsFound,
    Finding,
    Known,
    Owner,
    Place,
    WatchdogStuck,
)
from watchtower.readers.text_lines import Line
from watchtower.wire.bounds import MAX_RANK

WORDS = (b"Watchdog caught", b" NCCL work: ", b"watchdog got stuck", b"last enqueued work: ")

_WHO = re.compile(
    r"\[(?:PG (?:ID \d{1,9} PG GUID )?"
    r"(?P<group>[^\s()\[\]]{1,64})(?:\((?P<title>[^()\[\]]{0,64})\))? )?"
    r"Rank (?P<rank>\d{1,7})\]"
)
_WORK = re.compile(
    r"WorkNCCL\(SeqNum=(?P<number>\d{1,18}), OpType=(?P<operation>\w{1,40})"
    r"(?:, TensorShape=\[(?P<shape>[\d, ]{0,120})\])?"
    r"(?:, NumelIn=(?P<given>\d{1,18}), NumelOut=(?P<taken>\d{1,18}))?"
    r"(?:, Timeout\(ms\)=(?P<timeout>\d{1,12}))?"
)
_RAN = re.compile(r"ran for (\d{1,12}) milliseconds")
_AT = re.compile(r"(?:at NCCL work|work sequence id): (\d{1,18})")
_ENQUEUED = re.compile(r"last enqueued (?:NCCL )?work: (\d{1,18})")
_COMPLETED = re.compile(r"last completed (?:NCCL )?work: (\d{1,18})")
_STUCK = re.compile(r"watchdog got stuck for (\d{1,9}) ?seconds")

OPERATIONS = {
    "ALLREDUCE": "all_reduce",
    "BROADCAST": "broadcast",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "_all_gather_base",
    "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "_reduce_scatter_base",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
    "BARRIER": "barrier",
    "REDUCE": "reduce",
    "GATHER": "gather",
    "SCATTER": "scatter",
    "SEND": "send",
    "RECV": "recv",
}
"""Names of torch's OpType, and those of the flight recorder."""

UNNAMED_GROUP = "a group without a name"
"""A group of which a line shows only that it is not that of all ranks."""

MESSAGES = frozenset({"send", "recv"})


def read(lines: Sequence[Line], place: Place, prefix: Owner) -> Iterator[Finding]:
    """Yield what a line of the watchdog shows; nothing of any other line."""
    text = lines[0].text
    who = _WHO.search(text)
    owner, group, group_rank = _owner_of(who, prefix)
    if stuck := _STUCK.search(text):
        yield WatchdogStuck(place=place, owner=owner, stuck_s=float(stuck[1]))
        return
    work, at = _WORK.search(text), _AT.search(text)
    if who is None or (work is None and at is None):
        return
    operation = OPERATIONS.get(work["operation"], work["operation"].lower()) if work else ""
    number = int((work and work["number"]) or (at and at[1]) or UNKNOWN)
    if operation in MESSAGES:
        return  # its number counts the messages of two ranks
    enqueued, completed = _number(_ENQUEUED, text), _number(_COMPLETED, text)
    if not _fit(number, enqueued, completed):
        enqueued = completed = UNKNOWN
    timeout = work["timeout"] if work else None
    ran = _RAN.search(text)
    yield CallsFound(
        place=place,
        owner=owner,
        group=group,
        group_rank=group_rank,
        waits_in=number,
        enqueued=enqueued,
        completed=completed,
        operation=operation,
        signature=_signature(work),
        timeout_s=int(timeout) / 1000 if timeout else 0.0,
        waited_s=int(ran[1]) / 1000 if ran else 0.0,
    )


def _owner_of(who: re.Match[str] | None, prefix: Owner) -> tuple[Owner, str, int]:
    """Return the global rank, the group and the rank in the group."""
    if who is None:
        return prefix, DEFAULT_GROUP, UNKNOWN
    number = int(who["rank"])
    if number > MAX_RANK:
        return prefix, DEFAULT_GROUP, UNKNOWN
    title = who["title"] or ""
    if who["group"] is None:
        # Until 2.2 no line names its group: it is another one if the rank is not the global one.
        if prefix.rank in (number, UNKNOWN):
            return Owner(number, min(prefix.known, Known.CONTENT)), DEFAULT_GROUP, number
        return prefix, UNNAMED_GROUP, number
    if who["group"] == "0" or title == DEFAULT_GROUP:
        return Owner(number, Known.CONTENT), DEFAULT_GROUP, number
    return prefix, f"{who['group']} {title}".strip(), number


def _number(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    return int(found[1]) if found else UNKNOWN


def _fit(number: int, enqueued: int, completed: int) -> bool:
    """Return whether the numbers can be of one kind: completed before the open one."""
    return completed < number <= enqueued if enqueued >= 0 and completed >= 0 else True


def _signature(work: re.Match[str] | None) -> str:
    if work is None or work["given"] is None:
        return ""
    return f"[{work['given']}] -> [{work['taken']}]"
