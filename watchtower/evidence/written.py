"""Which lines of a rank's output are about the present stall."""

from __future__ import annotations

import re
from collections.abc import Set

from watchtower.evidence.case import RankEvidence
from watchtower.readers.tracebacks import START as TRACEBACK
from watchtower.wire.dumps import WrittenLines
from watchtower.writing.text import clean

END_S = 120.0
"""Seconds before the end of a process in which what it wrote is about its end: torch's watchdog
waits for a minute after its first line before it ends the process."""


def recent_lines(item: RankEvidence, stalled_for_s: float) -> tuple[WrittenLines, ...]:
    """Return what a rank has written since the stall began, by its dumps; each line once.

    A job may survive an error. What it wrote before its last step is not why it stopped.
    """
    since_s = stalled_for_s
    if item.ended is not None:
        since_s = max(since_s, item.beat.age_s if item.beat else item.ended.age_s + END_S)
    found = {
        (each.file, each.text): each
        for dump in item.dumps
        for each in dump.written
        if each.age_s <= since_s
    }
    return tuple(found.values())


_NAMED = re.compile(r"\branks?[ :]{1,2}((?:\d{1,7}(?:, ?)?){1,64})", re.IGNORECASE)

_NUMBER = re.compile(r"\d{1,7}")


def names_ranks(text: str, ranks: Set[int]) -> bool:
    """Return whether a text names one of these ranks: "rank 3", "Ranks 4, 5"."""
    named = (number for found in _NAMED.findall(text) for number in _NUMBER.findall(found))
    return any(int(number) in ranks for number in named)


MAX_LINE = 240
"""Characters of a line that is quoted: a watchdog's line with its times."""


def write_line(text: str) -> str:
    """Return the line that says most: the message of a traceback, else the first line."""
    lines = [line for line in text.split("\n") if line.strip() and TRACEBACK not in line]
    return clean(lines[0], MAX_LINE) if lines else ""
