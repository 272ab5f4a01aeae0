"""Lines of torch besides those of its watchdog: monitored barriers, mismatches, torchrun's table.

* `Detected mismatch between collectives on ranks. Rank R is running collective:
  CollectiveFingerPrint(SequenceNumber=N, OpType=NAME, TensorShape=[..], TensorDtypes=T, ..), but
  Rank R is running collective: ...`
* Rank 0 of a monitored barrier names the ranks that did not come: `Ranks 4, 5 failed to pass
  monitoredBarrier in N ms`. The others write that they `successfully reached monitoredBarrier`, and
  blame rank 0.
* torchrun writes of OMP_NUM_THREADS when it starts, and how often it has restarted the ranks.
* torchrun's table has the rank, exit code and time of each process that ended by itself. Its "root
  cause" is the first one by time, which is often a victim.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from watchtower.readers.findings import (
    UNKNOWN,
    BarrierFound,
    CallsFound,
    EndFound,
    Finding,
    Known,
    Owner,
    Place,
    RunStarted,
    WorldFound,
)
from watchtower.readers.text_lines import Line
from watchtower.readers.watchdog import OPERATIONS
from watchtower.wire.bounds import MAX_RANK, MAX_WORLD_SIZE

MISMATCH_WORDS = (b"Detected mismatch between collectives",)
BARRIER_WORDS = (b"onitoredBarrier", b"onitored_barrier")
TABLE_WORDS = (b"  time      : ",)
WORLD_WORDS = (b"world_size", b"WORLD_SIZE", b"orld size")
START_WORDS = (
    b"Setting OMP_NUM_THREADS environment variable",
    b"will restart worker group",
    b"restart_count=",
)
TABLE_LINES = 6
"""Lines of one process in torchrun's table."""

MAX_MISSING = 4096
"""Ranks that one line of a barrier names."""

_CALL = re.compile(
    r"Rank (?P<rank>\d{1,7}) is running collective: CollectiveFingerPrint\("
    r"SequenceNumber=(?P<number>\d{1,18}), ?OpType=(?P<operation>\w{1,40})"
    r"(?:, ?TensorShape=\[(?P<shape>[\d, ]{0,120})\])?(?:, ?TensorDtypes=(?P<type>\w{0,40}))?"
)
_CODE = re.compile(r"-?\d{1,5}")
_WORLD = re.compile(r"(?i)world[_ ]size['\"]?\s{0,2}[=:]\s{0,2}(\d{1,7})\b")
_MISSING = re.compile(r"Ranks? (\d{1,7}(?:, ?\d{1,7})*) failed to pass monitored")
_REACHED = re.compile(r"Rank (\d{1,7}) successfully reached monitored")
_ROW = re.compile(
    r"\b(time|host|rank|exitcode)\s{1,8}: (\S{1,256})(?: \((?:pid|local_rank): (\d{1,10})\))?"
)


def read_mismatch(lines: Sequence[Line], place: Place, prefix: Owner) -> Iterator[Finding]:
    """Yield the calls of the two ranks that a mismatch names."""
    for found in list(_CALL.finditer(lines[0].text))[:2]:
        if int(found["rank"]) <= MAX_RANK:
            operation = found["operation"]
            yield CallsFound(
                place=place,
                owner=Owner(int(found["rank"]), Known.CONTENT),
                waits_in=int(found["number"]),
                operation=OPERATIONS.get(operation, operation.lower()),
                signature=f"{(found['type'] or '').lower()}[{found['shape'] or ''}]",
            )


def read_barrier(lines: Sequence[Line], place: Place, prefix: Owner) -> Iterator[Finding]:
    """Yield the ranks that did not come to a monitored barrier, or one that did."""
    if missing := _MISSING.search(lines[0].text):
        ranks = [int(each) for each in missing[1].split(",")[:MAX_MISSING]]
        kept = tuple(rank for rank in ranks if rank <= MAX_RANK)
        yield BarrierFound(place=place, owner=Owner(0, Known.CONTENT), missing=kept)
    elif (reached := _REACHED.search(lines[0].text)) and int(reached[1]) <= MAX_RANK:
        yield BarrierFound(place=place, owner=Owner(int(reached[1]), Known.CONTENT))


def read_world(lines: Sequence[Line], place: Place, prefix: Owner) -> Iterator[Finding]:
    """Yield the number of ranks that a line names. That of a part of the job is smaller."""
    sizes = [int(each) for each in _WORLD.findall(lines[0].text)[:8]]
    if kept := [size for size in sizes if 0 < size <= MAX_WORLD_SIZE]:
        yield WorldFound(place=place, owner=prefix, size=max(kept))


def read_start(lines: Sequence[Line], place: Place, prefix: Owner) -> Iterator[Finding]:
    """Yield that a launcher starts the processes of a node."""
    yield RunStarted(place=place, owner=prefix)


def read_table(lines: Sequence[Line], place: Place, prefix: Owner) -> Iterator[Finding]:
    """Yield how a process ended, from its lines in torchrun's table."""
    values = {m[1]: (m[2], m[3]) for line in lines if (m := _ROW.search(line.text))}
    rank, code = values.get("rank", ("", ""))[0], values.get("exitcode", ("", ""))[0]
    if not rank.isdecimal() or len(rank) > 7 or not _CODE.fullmatch(code):
        return
    pid = values["exitcode"][1]
    yield EndFound(
        place=place,
        owner=Owner(min(int(rank), MAX_RANK), Known.CONTENT),
        code=int(code),
        pid=int(pid) if pid else UNKNOWN,
        node=values.get("host", ("", ""))[0],
        at=_moment(values.get("time", ("", ""))[0]),
    )


def _moment(text: str) -> float:
    """Return the UNIX seconds of "2024-06-26_06:24:44"; `UNKNOWN` if it is not such a time."""
    try:
        made = datetime.strptime(text, "%Y-%m-%d_%H:%M:%S")
    except ValueError:
        return float(UNKNOWN)
    return made.replace(tzinfo=timezone.utc).timestamp()
