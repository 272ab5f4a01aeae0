"""Reads logs: of one rank or of several, with prefixes of launchers, in chunks.

`LINE_READERS` is the list of what is known in a line. Each has words without which a line is not
its own.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from watchtower.readers import (
    error_lines,
    kernel_lines,
    nccl_lines,
    node_lines,
    ras,
    stacks,
    torch_texts,
    tracebacks,
    watchdog,
)
from watchtower.readers.findings import (
    NO_OWNER,
    FileFound,
    Finding,
    Known,
    Owner,
    Place,
    StacksFound,
    StepFound,
    WorldFound,
)
from watchtower.readers.text_lines import (
    Chunk,
    Line,
    WordFilter,
    blocks_with,
    chunks,
    decode,
    last_line,
    rank_in_name,
    rank_in_prefix,
)
from watchtower.wire.bounds import MAX_RANK, MAX_TEXT

MAX_FINDINGS = 16_384
"""Findings of one file, the last ones. A log of one rank has some tens, one of 512 ranks some of
each; a loop that prints its errors has any number."""

MAX_SIZES = 64
"""Numbers of ranks of one file that are kept: programs write one when they start, some in each
step."""

MAX_SIZE_LINES = 100_000
"""Lines in which a number of ranks is searched if one was found: ranks write it as they start."""

TAIL_BYTES = 1 << 18
"""Bytes at the end of a file in which the last steps are searched: 2000 lines."""

MAX_OTHERS = 1024
"""Lines about steps that show no further rank: then all ranks that write some are known."""

STEP_WORDS = (b"step", b"Step", b"iter", b"Iter", b"STEP")

_STEP = re.compile(
    r"(?i)\b(?:global_?step|step|iter(?:ation)?)s?\b[ '\":=#\[(]{0,4}(\d{1,12})(?![\d.]*s\b)"
)
"""The step of a line: "step 807", "iteration 40/ 1000", "global_step: 12", not "step 0.4s"."""

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
    LineReader(stacks.WORDS, stacks.read_in_log, stacks.MAX_LINES),
    LineReader(tracebacks.WORDS, tracebacks.read, tracebacks.MAX_LINES),
    LineReader(error_lines.WORDS, error_lines.read),
    LineReader(kernel_lines.WORDS, kernel_lines.read),
    LineReader(node_lines.GPU_WORDS, node_lines.read_gpu, node_lines.GPU_LINES),
    LineReader(node_lines.LINK_WORDS, node_lines.read_link),
    LineReader(node_lines.PORT_WORDS, node_lines.read_ports, node_lines.PORT_LINES),
    LineReader(node_lines.TASK_WORDS, node_lines.read_tasks),
    LineReader(node_lines.JAX_WORDS, node_lines.read_jax, node_lines.JAX_LINES),
    LineReader(node_lines.NOTE_WORDS, node_lines.read_note),
)


def recognises(head: bytes) -> bool:
    """Return whether the first bytes of a file are text."""
    return b"\0" not in head


def read(name: str, stream: BinaryIO) -> FileFound:
    """Read a log."""
    named = rank_in_name(name)
    findings: deque[Finding] = deque(maxlen=MAX_FINDINGS)
    ranks: set[int] = set()
    known = WordFilter(word for reader in LINE_READERS for word in reader.words)
    sizes: set[tuple[Owner, int]] = set()
    dumps: dict[Owner, int] = {}
    chunk, last, missed = Chunk(b"", 1), "", 0
    for chunk in chunks(stream):
        ranks |= _ranks_in_prefixes(chunk.data)
        words = known.words_in(chunk.data)
        if len(sizes) >= MAX_SIZES or (sizes and chunk.first > MAX_SIZE_LINES):
            words -= set(torch_texts.WORLD_WORDS)
        for found in _read_chunk(name, chunk, named, words):
            findings += (each for each in found if _is_news(each, sizes, dumps))
            missed += not found
        last = last_line(chunk.data) or last
    findings += _find_steps(name, chunk, named, of_one=len(ranks) == 1 or named is not NO_OWNER)
    ends_open = bool(chunk.data) and not chunk.data.endswith(b"\n")
    return FileFound(
        name=name,
        form="log",
        owner=_owner_of_file(named, ranks, findings),
        ranks=tuple(sorted(ranks)),
        findings=tuple(findings),
        lines=chunk.first - 1 + chunk.data.count(b"\n") + ends_open,
        last_line=last[:MAX_TEXT],
        not_understood=missed,
    )


def _read_chunk(
    name: str, chunk: Chunk, named: Owner, words: set[bytes]
) -> Iterator[list[Finding]]:
    """Yield what each line with one of these words shows, or an empty list."""
    for reader in LINE_READERS:
        for lines in blocks_with(chunk, [w for w in reader.words if w in words], reader.most):
            prefix = rank_in_prefix(lines[0].text)
            owner = named if prefix is NO_OWNER else prefix
            yield list(reader.read(lines, Place(name, lines[0].number), owner))


def _find_steps(name: str, chunk: Chunk, named: Owner, *, of_one: bool) -> Iterator[StepFound]:
    """Yield the last step of each rank in the end of a file, from its last line on. `of_one`: it
    has lines of one rank only."""
    lines = chunk.data[-TAIL_BYTES:].split(b"\n")
    last = chunk.first + chunk.data.count(b"\n")
    seen: set[Owner] = set()
    others = 0
    for number, raw in zip(range(last, 0, -1), reversed(lines), strict=False):
        if not any(word in raw for word in STEP_WORDS):
            continue
        text = decode(raw)
        prefix = rank_in_prefix(text)
        owner = named if prefix is NO_OWNER else prefix
        if owner in seen or not (found := _STEP.search(text)):
            others += 1
        else:
            seen.add(owner)
            yield StepFound(place=Place(name, number), owner=owner, step=int(found[1]))
        if others >= MAX_OTHERS or (of_one and seen):
            return


def _ranks_in_prefixes(data: bytes) -> set[int]:
    return {rank for each in set(_PREFIXES.findall(data)) if (rank := int(each)) <= MAX_RANK}


def _is_news(finding: Finding, sizes: set[tuple[Owner, int]], dumps: dict[Owner, int]) -> bool:
    """Return whether no line before had the same number of ranks, and no dump this stack.

    `dumps`: the last line of the last dump of each rank.
    """
    if isinstance(finding, StacksFound):
        line = finding.place.line
        is_part = line <= dumps.get(finding.owner, 0)
        dumps[finding.owner] = max(dumps.get(finding.owner, 0), line + finding.lines - 1)
        return not is_part
    if not isinstance(finding, WorldFound):
        return True
    before = len(sizes)
    if before < MAX_SIZES:
        sizes.add((finding.owner, finding.size))
    return len(sizes) > before


def _owner_of_file(named: Owner, ranks: set[int], findings: Iterable[Finding]) -> Owner:
    """Return the rank whose file it is: the only one in its lines, else the one in its name."""
    written = ranks | {f.owner.rank for f in findings if f.owner.known <= Known.PREFIX}
    if len(written) > 1:
        return NO_OWNER
    return Owner(written.pop(), Known.CONTENT) if written else named
