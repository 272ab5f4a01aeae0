"""Reads the text of NCCL's RAS subsystem, also where it is pasted into a log.

It counts the collectives that each rank of a communicator has launched, and lists the ranks of the
smaller part:

    #0-0 (27a079b828ff1a75) MISMATCH
      30 ranks have launched up to operation 640
      2 ranks have launched up to operation 641
      Rank 12 -- GPU 4 managed by process 4711 on node 10.0.0.2

Those it lists may be ahead. Launched is not completed. Sends, all-to-all and collectives in CUDA
graphs are not counted, so equal counts show nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from watchtower.readers.findings import (
    UNKNOWN,
    CallsFound,
    Finding,
    Known,
    Owner,
    Place,
    WorldFound,
)
from watchtower.readers.text_lines import Line
from watchtower.wire.bounds import MAX_RANK, MAX_WORLD_SIZE

WORDS = (b"MISMATCH",)

MAX_LINES = 256
"""Lines of one communicator: RAS lists the ranks of the smaller part, on large jobs only some."""

MAX_OTHERS = 4096
"""Ranks that are not listed, and get a finding of their own. A line can name any number of them."""

_HEAD = re.compile(r"#\d{1,6}-\d{1,6} \((?P<group>[0-9a-fx]{1,20})\) MISMATCH")
_PART = re.compile(r"(\d{1,7}) ranks? (?:has|have) launched up to operation (\d{1,18})")
_RANK = re.compile(r"Rank (\d{1,7}) (?:--|-) GPU")


def read(lines: Sequence[Line], place: Place, prefix: Owner) -> Iterator[Finding]:
    """Yield where ranks wait, if the listed ranks are the whole smaller part of two."""
    parts: list[tuple[int, int]] = []
    listed: set[int] = set()
    for line in lines:
        if found := _PART.search(line.text):
            parts.append((int(found[1]), int(found[2])))
        elif (found := _RANK.search(line.text)) and int(found[1]) <= MAX_RANK:
            listed.add(int(found[1]))
        elif parts and (not line.text.strip() or _HEAD.search(line.text)):
            break
    size = sum(count for count, _ in parts)
    if len(parts) != 2 or size > MAX_WORLD_SIZE or len(listed) != min(parts)[0]:
        return
    (_, of_few), (_, of_most) = sorted(parts)
    awaited = min(of_few, of_most) + 1
    yield WorldFound(place=place, owner=prefix, size=size)
    # If the listed ranks are ahead, the others may be in calls that are not counted.
    others = (rank for rank in range(size) if rank not in listed)
    kept = islice(others, MAX_OTHERS) if of_few < of_most else ()
    shown = sorted({*listed, *kept})
    for rank in shown:
        launched = of_few if rank in listed else of_most
        yield CallsFound(
            place=place,
            owner=Owner(rank, Known.CONTENT),
            group="NCCL RAS",
            group_rank=rank,
            group_size=size,
            waits_in=awaited if launched >= awaited else UNKNOWN,
            enqueued=launched,
            completed=awaited - 1,
            library="nccl ras",
        )
