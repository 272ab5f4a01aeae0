"""Reads logs: of one rank or of several, with prefixes of launchers, in chunks.

`LINE_READERS` is the list of what is known in a line. Each has words without which a line is not
its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import BinaryIO, NamedTuple

from watchtower.readers import watchdog
from watchtower.readers.findings import NO_OWNER, FileFound, Finding, Known, Owner, Place
from watchtower.readers.text_lines import (
    Chunk,
    Line,
    chunks,
    last_line,
    lines_with,
    rank_in_name,
    rank_in_prefix,
)
from watchtower.wire.bounds import MAX_RANK, MAX_TEXT

MAX_FINDINGS = 4096
"""Findings of one file. A log of one rank has some tens, one of 512 ranks has some of each."""

_PREFIXES = re.compile(rb"\[rank(\d{1,7})\]:")


class LineReader(NamedTuple):
    """What is known of one kind of lines."""

    words: tuple[bytes, ...]
    read: Callable[[Line, Place, Owner], Iterator[Finding]]


LINE_READERS: tuple[LineReader, ...] = (LineReader(watchdog.WORDS, watchdog.read),)

_WORDS = tuple(dict.fromkeys(chain.from_iterable(each.words for each in LINE_READERS)))


def recognises(head: bytes) -> bool:
    """Return whether the first bytes of a file are text."""
    return b"\0" not in head


def read(name: str, stream: BinaryIO) -> FileFound:
    """Read a log."""
    named = rank_in_name(name)
    findings: list[Finding] = []
    ranks: set[int] = set()
    lines, last, missed = 0, "", 0
    for chunk in chunks(stream):
        ranks |= _ranks_in_prefixes(chunk)
        for line in lines_with(chunk, _WORDS):
            found = list(_read_line(name, line, named)) if len(findings) < MAX_FINDINGS else []
            findings += found
            missed += not found
        lines = chunk.first - 1 + chunk.data.count(b"\n") + (not chunk.data.endswith(b"\n"))
        last = last_line(chunk.data) or last
    return FileFound(
        name=name,
        form="log",
        owner=_owner_of_file(named, ranks, findings),
        ranks=tuple(sorted(ranks)),
        findings=tuple(findings),
        lines=lines,
        last_line=last[:MAX_TEXT],
        not_understood=missed,
    )


def _read_line(name: str, line: Line, named: Owner) -> Iterator[Finding]:
    owner = rank_in_prefix(line.text)
    for reader in LINE_READERS:
        yield from reader.read(
            line, Place(name, line.number), named if owner is NO_OWNER else owner
        )


def _ranks_in_prefixes(chunk: Chunk) -> set[int]:
    return {rank for each in set(_PREFIXES.findall(chunk.data)) if (rank := int(each)) <= MAX_RANK}


def _owner_of_file(named: Owner, ranks: set[int], findings: list[Finding]) -> Owner:
    """Return the rank whose file it is: the only one in its lines, else the one in its name."""
    written = ranks | {f.owner.rank for f in findings if f.owner.known <= Known.PREFIX}
    if len(written) > 1:
        return NO_OWNER
    return Owner(written.pop(), Known.CONTENT) if written else named
