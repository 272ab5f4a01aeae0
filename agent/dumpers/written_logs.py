"""Dumpers: what readers know in the output of ranks and in their files, if the agent may read them,
and in NCCL's RAS.

Only lines that a reader turns into a finding leave the node, with as few of the lines after them as
the finding needs. The readers are those of `watchtower diagnose`, and they read the same lines
again where the case is made.
"""

from __future__ import annotations

import base64
import io
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, dropwhile, takewhile

import msgspec

from agent.children import ChildRunner, Program
from agent.dumpers.dumper import RankRecords, RanksOfRound, Step, Tree
from agent.dumpers.nccl_ras import NcclRas
from agent.dumpers.outputs import RECORDS_AGE_S, Output, Outputs
from watchtower.readers import logs
from watchtower.readers.collective_calls import trim
from watchtower.readers.files import read_bytes
from watchtower.readers.findings import FileFound, Finding, Place, RecordsFound, StepFound
from watchtower.readers.text_lines import decode
from watchtower.wire.bounds import MAX_TEXT
from watchtower.wire.dumps import MAX_WRITTEN, MAX_WRITTEN_TEXT, WrittenLines
from watchtower.writing.printable import printable
from watchtower.writing.secrets import hide_secrets

READ_S = 3.0
"""Seconds for the files of a round. Reading takes 50 ms; a hanging file system never answers."""

MAX_READ_BYTES = 4 << 20
"""Bytes of all files of one round, which their ranks share."""

MAX_FILE_BYTES = 1 << 18
"""Bytes at the end of one file: 2000 lines. Those of a watchdog and of a traceback are the last."""

MAX_BLOCK = 400
"""Lines of one finding, as of a traceback and of the text of RAS."""

MAX_BATCH_TEXT = 1 << 20
"""Characters that one round sends. Watchdogs of 16 ranks write 40 kB."""


class ReadFile(msgspec.Struct):
    """The end of one file, as the child has read it."""

    first: int
    raw: str


LOG_CHILD = Program(
    name="agent.dumpers.log_child",
    answers=msgspec.json.Decoder(ReadFile),
    purpose="the logs of ranks cannot be read",
    max_output_bytes=2 * MAX_READ_BYTES,
)


Files = dict[tuple[int, int], tuple[Output, list[Tree]]]
"""Files with the ranks that have them, by device and inode."""


class WrittenLogs:
    """Reads the output of the ranks of a round, and what NCCL answers about them."""

    name, at_once, needs_stacks = "logs", 1, False

    def __init__(self, runner: ChildRunner, outputs: Outputs | None, ras: NcclRas) -> None:
        """Without `outputs` no file is read."""
        self._runner, self._outputs, self._ras = runner, outputs, ras

    def plan(self, ranks: RanksOfRound) -> Sequence[Step]:
        """Return one step for all ranks. A sample is not diagnosed, and has none."""
        return [] if ranks.is_sample else [partial(self._fill, ranks)]

    def _fill(self, ranks: RanksOfRound) -> None:
        written: dict[int, list[WrittenLines]] = {}
        if self._outputs is not None:
            self._read_outputs(ranks, self._outputs, written)
        for tree, name, answer in self._ras.ask(ranks):
            lines = written.setdefault(tree.target.pid, [])
            for _, text in _find_known(answer):
                lines.append(WrittenLines(file=name, text=text, own=False))
        left = MAX_BATCH_TEXT
        for tree in ranks.trees:
            left = _keep(tree, written.get(tree.target.pid, ()), left)

    def _read_outputs(
        self, ranks: RanksOfRound, outputs: Outputs, written: dict[int, list[WrittenLines]]
    ) -> None:
        files = _files_of(ranks, outputs, records=False)
        left_s = min(READ_S, ranks.deadline - time.monotonic())
        if not files or left_s <= 0:
            return
        count = min(MAX_FILE_BYTES, MAX_READ_BYTES // len(files))
        numbers = [str(output.held.number) for output, _ in files.values()]
        words = [f"/proc/{os.getpid()}/fd", str(count), *numbers]
        answers = self._runner.ask(LOG_CHILD, words, left_s, ranks.owner).found
        for (output, trees), read in zip(files.values(), answers, strict=False):
            lines = written.setdefault(trees[0].target.pid, [])
            lines += _lines_of(read, output, is_own=len(trees) == 1)


def _files_of(ranks: RanksOfRound, outputs: Outputs, *, records: bool) -> Files:
    """Return the files of text of these ranks, or the dumps of their flight recorders."""
    files: Files = {}
    for tree in ranks.trees:
        for output in outputs.of((tree.target.pid, tree.target.start_time)):
            if output.is_records is records:
                files.setdefault(output.file, (output, []))[1].append(tree)
    return files


class RecorderFiles:
    """Reads the dumps of flight recorders, of ranks whose recorder was not asked. torch writes them
    when a call has timed out."""

    name, at_once, needs_stacks = "recorder files", 1, True

    def __init__(self, runner: ChildRunner, outputs: Outputs | None) -> None:
        """Without `outputs` no file is read."""
        self._runner, self._outputs = runner, outputs

    def plan(self, ranks: RanksOfRound) -> Sequence[Step]:
        """Return a step for each dump. One that two ranks may have written is of another job."""
        if self._outputs is None or ranks.is_sample:
            return []
        now = time.monotonic()
        return [
            partial(self._fill, ranks, output, trees[0])
            for output, trees in _files_of(ranks, self._outputs, records=True).values()
            if len(trees) == 1 and output.age_s(0, now) < RECORDS_AGE_S
        ]

    def _fill(self, ranks: RanksOfRound, output: Output, tree: Tree) -> None:
        left_s = min(READ_S, ranks.deadline - time.monotonic())
        if left_s <= 0 or (tree.records is not None and tree.records.logs):
            return
        words = [f"/proc/{os.getpid()}/fd", str(MAX_READ_BYTES), str(output.held.number)]
        for read in self._runner.ask(LOG_CHILD, words, left_s, ranks.owner).found:
            raw = b"" if read.first else base64.b64decode(read.raw)
            name = f"rank{tree.target.rank}"
            for each in read_bytes(name, raw).findings:
                if isinstance(each, RecordsFound):
                    made = trim(each.records.library or "nccl", each.records, ())
                    tree.records = replace(
                        tree.records or RankRecords(), logs=made.logs, oldest_open=made.oldest_open
                    )


def _keep(tree: Tree, written: Sequence[WrittenLines], left: int) -> int:
    """Add the newest lines to a rank, while they fit; return the characters that are left."""
    kept: list[WrittenLines] = []
    for each in sorted(written, key=lambda each: each.age_s)[:MAX_WRITTEN]:
        if len(each.text) > left:
            break
        left -= len(each.text)
        kept.insert(0, each)
    if kept:
        tree.evidence["written"] = tuple(kept)
    return left


def _lines_of(file: ReadFile, output: Output, *, is_own: bool) -> Iterator[WrittenLines]:
    """Yield the lines of the end of a file that a reader knows."""
    now = time.monotonic()
    skipped = max(0, output.first - file.first)
    first = file.first + skipped
    path = printable(output.path, MAX_TEXT)
    is_silent = True
    for offset, text in _find_known(base64.b64decode(file.raw)[skipped:]):
        is_silent = False
        age_s = output.age_s(first + offset, now)
        yield WrittenLines(file=path, text=text, age_s=age_s, own=is_own)
    if is_silent and output.is_error and is_own:
        yield WrittenLines(file=path, text="")  # silence is evidence


def _find_known(raw: bytes) -> Iterator[tuple[int, str]]:
    """Yield the lines that a reader knows, each with the offset of its beginning."""
    lines = raw.split(b"\n")
    offsets = [0, *accumulate(len(line) + 1 for line in lines)]
    places = sorted(_by_line(logs.read("", io.BytesIO(raw + b"\n"))))
    for line in places[-MAX_WRITTEN:]:
        block = [decode(each) for each in lines[line - 1 : line - 1 + MAX_BLOCK]]
        text = "\n".join(hide_secrets(printable(each, 4 * MAX_TEXT)) for each in _shorten(block))
        if len(text) <= MAX_WRITTEN_TEXT:
            yield offsets[line - 1], text


def _by_line(found: FileFound) -> dict[int, list[Finding]]:
    by_line: dict[int, list[Finding]] = defaultdict(list)
    for each in found.findings:
        if isinstance(each, StepFound):
            continue  # a line of the program's own, which stays on the node
        by_line[each.place.line].append(replace(each, place=Place("")))
    return by_line


def _read(lines: Sequence[str]) -> list[Finding]:
    """Return what readers find at the first of these lines."""
    raw = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
    return _by_line(logs.read("", io.BytesIO(raw))).get(1, [])


def _shorten(block: Sequence[str]) -> Sequence[str]:
    """Return the fewest of these lines that show the same: none after the last one that is needed,
    and no source of a traceback."""
    wanted = _read(block)
    short, long = 1, len(block)
    while short < long:
        middle = (short + long) // 2
        if _read(block[:middle]) == wanted:
            long = middle
        else:
            short = middle + 1
    needed = block[:long]
    # The source lines of a traceback stand in front of what it says.
    plain = [needed[0], *dropwhile(partial(_is_indented, needed[0]), needed[1:])]
    return plain if _read(plain) == wanted else needed


def _is_indented(first: str, line: str) -> bool:
    """Return whether a line goes on with spaces after the prefix that it shares with the first."""
    shared = takewhile(lambda pair: pair[0] == pair[1], zip(first, line, strict=False))
    return line[sum(1 for _ in shared) :].startswith(" ")
