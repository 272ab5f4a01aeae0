"""Lines of a text file of any size, in chunks, and whose rank a line is.

Most lines of a log are no evidence, and are like others but for their numbers. So a chunk is
searched for a few words only if one of its lines is new and has them, and only lines with one of
the words are cut out and decoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import BinaryIO, NamedTuple

from watchtower.readers.findings import NO_OWNER, Known, Owner
from watchtower.wire.bounds import MAX_RANK

CHUNK_BYTES = 1 << 20
"""Bytes read at once."""

MAX_LINE_BYTES = 16_384
"""Bytes of a line that are read. Shippers cut lines at this length; lines of tables are shorter."""

MAX_HITS = 65_536
"""Lines of one chunk that may contain evidence: more are the text of a program that repeats it."""

MAX_BLOCKS = 512
"""Tracebacks of one chunk that are read: they are as long as their stacks are deep."""

_ESCAPES = re.compile(rb"\x1b\[[0-9;?]{0,32}[A-Za-z]")

_TORCH = re.compile(r"\[rank(\d{1,7})\]:")
"""Prefix of torch 2.2 and newer. It has the global rank."""

_LAUNCHERS = re.compile(
    r"\s{0,8}(?P<srun>\d{1,7}): |(?:[^\s(]{1,64} ){0,2}(?:"
    r"\[\d{1,7},(?P<mpi>\d{1,7})\]<std(?:out|err)>:"
    r"|\[rank: (?P<lightning>\d{1,7})\] "
    r"|\((?:VllmWorker rank=|Worker_TP)(?P<vllm>\d{1,7})(?: pid=\d{1,10})?\)"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d TP(?P<sglang>\d{1,7})\] )"
)
"""Prefixes of `srun --label`, `mpirun --tag-output`, Lightning, vLLM and SGLang. All but the first
may stand after the time and the stream of a shipper. A worker of vLLM or SGLang whose prefix has a
tensor parallel rank only is in the only group, so that this is its rank."""

_IN_NAME = re.compile(
    r"(?<!node)(?<!node[-_.])(?<!local)(?<!local[-_.])(?<!host[-_.])(?<!machine[-_.])(?<![a-z])"
    r"(?:global[-_.]?)?rank[-_.=]?(\d{1,7})(?!\d)",
    re.IGNORECASE,
)
"""In the name of a file or folder: rank7.log, trace_rank_7.json, global_rank=7. The rank of a node
and a local rank are not the rank."""

_AT_END = re.compile(r"[._-](\d{1,7})(?:\.(?:log|txt|out|err|json|pkl|pickle))?$", re.IGNORECASE)
"""Last number of a name: job.out.7, slurm-4711-7.log, nccl_trace_7."""


class Line(NamedTuple):
    """One line, without the prefix of the launcher and without colours."""

    number: int
    text: str


def rank_in_name(name: str) -> Owner:
    """Return the rank that a path names: its last part counts before its folders."""
    path = PurePosixPath(name)
    if found := _IN_NAME.search(path.name):
        return _owner(found[1], Known.FILE_NAME)
    for part in reversed(path.parts[:-1]):
        if found := _IN_NAME.search(part):
            return _owner(found[1], Known.FOLDER)
    return NO_OWNER


def _last_number_in_name(name: str) -> int:
    """Return the last number of a file's name; -1 without one. It may be anything."""
    found = _AT_END.search(PurePosixPath(name).name)
    return int(found[1]) if found and int(found[1]) <= MAX_RANK else -1


def owner_in_name(name: str) -> Owner:
    """Return the rank that the name of a file has: "rank3", else its last number."""
    named = rank_in_name(name)
    if named.known is Known.FILE_NAME:
        return named
    number = _last_number_in_name(name)
    return Owner(number, Known.FILE_NAME) if number >= 0 else named


def rank_in_prefix(text: str) -> Owner:
    """Return the rank that stands in front of a line."""
    if found := _TORCH.search(text[:256]):
        return _owner(found[1], Known.PREFIX)
    if found := _LAUNCHERS.match(text[:256]):
        return _owner(found[found.lastgroup or ""], Known.PREFIX)
    return NO_OWNER


def _owner(number: str, known: Known) -> Owner:
    return Owner(int(number), known) if int(number) <= MAX_RANK else NO_OWNER


def decode(raw: bytes) -> str:
    """Return a line as text: without colours, and without what a progress bar has overwritten."""
    plain = _ESCAPES.sub(b"", raw[:MAX_LINE_BYTES]).rstrip(b"\r\n")
    return plain.rpartition(b"\r")[2].decode("utf-8", "replace")


class Chunk(NamedTuple):
    """Whole lines of a file, and the number of the first one."""

    data: bytes
    first: int
    after: bytes = b""
    """The bytes that follow: a traceback may begin in one chunk and end in the next."""


def chunks(stream: BinaryIO) -> Iterator[Chunk]:
    """Yield the file in chunks that end with a line. A longer line is cut into several."""
    before: Chunk | None = None
    for chunk in _cut(stream):
        if before is not None:
            yield before._replace(after=chunk.data)
        before = chunk
    if before is not None:
        yield before


def _cut(stream: BinaryIO) -> Iterator[Chunk]:
    rest, number = b"", 1
    more = stream.read(CHUNK_BYTES)
    while more:
        data, more = rest + more, stream.read(CHUNK_BYTES)
        end = data.rfind(b"\n") + 1
        if not more or (not end and len(data) >= 2 * CHUNK_BYTES):
            end = len(data)  # the last line of a file may have no end
        if end:
            yield Chunk(data[:end], number)
            number += data.count(b"\n", 0, end)
        rest = data[end:]


_NUMBERS = b"0123456789."

MAX_KNOWN_BYTES = 8 << 20
"""Bytes of the lines that are remembered: those of a program that writes some thousand kinds."""


class WordFilter:
    """Finds which of some words a chunk may contain. Lines that differ in numbers only are searched
    once for a whole file: twenty words need eight times as long in each line."""

    def __init__(self, words: Iterable[bytes]) -> None:
        self._words = {word: word.translate(None, _NUMBERS) for word in words}
        self._known: set[bytes] = set()
        self._bytes = 0

    def words_in(self, data: bytes) -> set[bytes]:
        """Return the words that these lines may contain; never one too few."""
        new = set(data.translate(None, _NUMBERS).split(b"\n")) - self._known
        text = b"\n".join(new)
        found = {word for word, plain in self._words.items() if plain in text}
        if not found and len(text) <= MAX_KNOWN_BYTES:
            self._bytes += len(text)
            if self._bytes > MAX_KNOWN_BYTES:
                self._known, self._bytes = set(), len(text)
            self._known |= new
        return found


def blocks_with(chunk: Chunk, words: Sequence[bytes], most: int = 1) -> Iterator[list[Line]]:
    """Yield each line of a chunk that contains one of these words, with the lines after it: `most`
    lines together."""
    data = chunk.data
    number, before = chunk.first, 0
    for start in _find_starts(data, words, MAX_HITS if most == 1 else MAX_BLOCKS):
        number += data.count(b"\n", before, start)
        before = start
        block = _cut_lines(data, start, number, most)
        if len(block) < most:
            block += _cut_lines(chunk.after, 0, number + len(block), most - len(block))
        yield block


def _cut_lines(data: bytes, at: int, number: int, most: int) -> list[Line]:
    """Return the lines from a place on: `most`, or as many as there are."""
    lines: list[Line] = []
    while at < len(data) and len(lines) < most:
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        lines.append(Line(number + len(lines), decode(data[at:end])))
        at = end + 1
    return lines


def _find_starts(data: bytes, words: Sequence[bytes], most: int) -> list[int]:
    """Return where the lines begin that contain one of these words."""
    starts: set[int] = set()
    for word in words:
        at = data.find(word)
        while at >= 0 and len(starts) < most:
            starts.add(data.rfind(b"\n", 0, at) + 1)
            end = data.find(b"\n", at)
            at = data.find(word, end) if end >= 0 else -1
    return sorted(starts)


def split_lines(chunk: Chunk) -> Iterator[Line]:
    """Yield every line of a chunk."""
    for number, raw in enumerate(chunk.data.split(b"\n"), chunk.first):
        yield Line(number, decode(raw))


def last_line(data: bytes) -> str:
    """Return the last line of a chunk that is not blank."""
    tail = data[-4 * MAX_LINE_BYTES :]
    kept = [line for line in tail.split(b"\n") if line.strip()]
    return decode(kept[-1]) if kept else ""
