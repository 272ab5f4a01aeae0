"""Lines of NCCL's own log: the start and the end of a communicator's set-up, and warnings.

* `host:pid:tid [dev] NCCL INFO [Rank R] FUNC comm 0x.. rank R nranks N .. commId 0x.. - Init
  START`, and the same with COMPLETE. `[Rank R]` from 2.29 on, FUNC from 2.21 on, commId from 2.18.
* `host:pid:tid [dev] file:line (function) NCCL WARN text`, with a time in front from 2.26 on.

The rank is the rank in the communicator. commId is equal on all its ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from watchtower.readers.findings import (
    ErrorFound,
    Finding,
    Known,
    Owner,
    Place,
    Process,
    SetUpFound,
)
from watchtower.readers.text_lines import Line
from watchtower.wire.bounds import MAX_TEXT, MAX_WORLD_SIZE
from watchtower.writing.printable import printable

SET_UP_WORDS = (b"Init START", b"Init COMPLETE")
WARN_WORDS = (b" NCCL WARN ",)

NCCL_WARNING = "NcclError"
"""Type of the finding of a warning: the table of error texts has rows about it."""

_PROCESS = re.compile(r"(?P<host>[\w.-]{1,128}):(?P<pid>\d{1,10}):\d{1,10} \[")
_SET_UP = re.compile(
    r"NCCL INFO .{0,80}?comm 0x[0-9a-f]{1,16} rank (?P<rank>\d{1,7}) nranks (?P<size>\d{1,7}) "
    r".{0,200}?(?:commId (?P<id>0x[0-9a-f]{1,16}) )?- Init (?P<what>START|COMPLETE)"
)
_WARN = re.compile(r" NCCL WARN (.{1,4000})")


def read_set_up(lines: Sequence[Line], place: Place, prefix: Owner) -> Iterator[Finding]:
    """Yield the start or the end of the set-up of a communicator on one rank."""
    text = lines[0].text
    found, process = _SET_UP.search(text), _process_of(text)
    if found is None or not int(found["rank"]) < int(found["size"]) <= MAX_WORLD_SIZE:
        return
    yield SetUpFound(
        place=place,
        owner=prefix if prefix.known is Known.PREFIX else Owner(),
        process=process,
        group=found["id"] or "",
        group_rank=int(found["rank"]),
        size=int(found["size"]),
        is_complete=found["what"] == "COMPLETE",
    )


def read_warning(lines: Sequence[Line], place: Place, prefix: Owner) -> Iterator[Finding]:
    """Yield a warning of NCCL."""
    text = lines[0].text
    if found := _WARN.search(text):
        yield ErrorFound(
            place=place,
            owner=prefix,
            type=NCCL_WARNING,
            text=printable(found[1], MAX_TEXT),
            process=_process_of(text),
        )


def _process_of(text: str) -> Process | None:
    found = _PROCESS.search(text)
    return Process(found["host"], int(found["pid"])) if found else None
