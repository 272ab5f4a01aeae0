"""Reads logs: of one rank or of several, with prefixes of launchers, in chunks.

`LINE_READERS` is the list of what is known in a line. Each has words without which a line is not
its own.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from watchtower.readers import nccl_lines, ras, torch_texts, tracebacks, watchdog
from watchtower.readers.findings import NO_OWNER, FileFound, Finding, Known, Owner, Place
from watchtower.readers.text_lines import (
    Chunk,
    Line,
    blocks_with,
    chunks,
    last_line,
    rank_in_name,
    rank_in_prefix,
)
from watchtower.wire.bounds import MAX_RANK, MAX_TEXT

MAX_FINDINGS = 16_384
"""Findings of one file, the last ones. A log of one rank has some tens, one of 512 ranks some of
each; a loop that prints its errors has any number."""

_PREFIXES = re.compile(rb"\[rank(\d{1,7})\]:")


class LineReader(NamedTuple):
    """What is known of one kind of lines."""

    words: tuple[bytes, ...]
    """A line without any of these is not of this kind."""
    read: Callable[[Sequence[Line], Place, Owner], Iterator[Finding]]
    most: int = 1
    """Lines that it needs together."""


LINE_READERS: tuple[LineReader, ...] = (
    LineReader(watchdog.WORDS, watchdog.read),
    LineReader(torch_texts.MISMATCH_WORDS, torch_texts.read_mismatch),
    LineReader(torch_texts.BARRIER_WORDS, torch_texts.read_barrier),
    LineReader(torch_texts.TABLE_WORDS, torch_texts.read_table, torch_texts.TABLE_LINES),
    LineReader(torch_texts.START_WORDS, torch_texts.read_start),
    LineReader(torch_texts.WORLD_WORDS, torch_texts.read_world),
    LineReader(nccl_lines.SET_UP_WORDS, nccl_lines.read_set_up),
    LineReader(nccl_lines.WARN_WORDS, nccl_lines.read_warning),
    LineReader(ras.WORDS, ras.read, ras.MAX_LINES),
    LineReader(tracebacks.WORDS, tracebacks.read, tracebacks.MAX_LINES),
)


def recognises(head: bytes) -> bool:
    """Return whether the first bytes of a file are text."""
    return b"\0" not in head


def read(name: str, stream: BinaryIO) -> FileFound:
    """Read a log."""
    named = rank_in_name(name)
    findings: deque[Finding] = deque(maxlen=MAX_FINDINGS)
    ranks: set[int] = set()
    lines, last, missed = 0, "", 0
    for chunk in chunks(stream):
        ranks |= _ranks_in_prefixes(chunk)
        for found in _read_chunk(name, chunk, named):
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


def _read_chunk(name: str, chunk: Chunk, named: Owner) -> Iterator[list[Finding]]:
    """Yield what each line with known words shows, or an empty list."""
    for reader in LINE_READERS:
        for lines in blocks_with(chunk, reader.words, reader.most):
            prefix = rank_in_prefix(lines[0].text)
            owner = named if prefix is NO_OWNER else prefix
            yield list(reader.read(lines, Place(name, lines[0].number), owner))


def _ranks_in_prefixes(chunk: Chunk) -> set[int]:
    return {rank for each in set(_PREFIXES.findall(chunk.data)) if (rank := int(each)) <= MAX_RANK}


def _owner_of_file(named: Owner, ranks: set[int], findings: Iterable[Finding]) -> Owner:
    """Return the rank whose file it is: the only one in its lines, else the one in its name."""
    written = ranks | {f.owner.rank for f in findings if f.owner.known <= Known.PREFIX}
    if len(written) > 1:
        return NO_OWNER
    return Owner(written.pop(), Known.CONTENT) if written else named
