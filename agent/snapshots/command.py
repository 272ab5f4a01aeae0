"""`watchtower-agent snapshot`: writes what the ranks of this node do now, without a tower."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TextIO

from agent.snapshots.file import (
    STDOUT,
    default_path,
    encode_snapshot,
    write_file,
    write_output,
)
from agent.snapshots.options import SnapshotOptions
from agent.snapshots.taking import SnapshotTaker
from agent.snapshots.text import describe
from watchtower.wire.bounds import MAX_TEXT
from watchtower.writing.printable import printable

DONE, NOTHING_FOUND, NOT_WRITTEN = 0, 1, 5

NO_RANKS = (
    "no rank was found on this node{matching}. A rank is a process with RANK (or the variable of "
    "another launcher) in its environment"
)


def snapshot(options: SnapshotOptions) -> int:
    """Take a snapshot, print its groups and write the file; return the exit code."""
    taker = SnapshotTaker(options)
    if not taker.find_ranks():
        pairs = " and ".join(f"{key}={value}" for key, value in options.match)
        none = NO_RANKS.format(matching=f" with {pairs} in its environment" if pairs else "")
        for sentence in (none, *taker.unwatched_texts, *taker.gaps.sentences()):
            _show(f"watchtower-agent: {printable(sentence, MAX_TEXT)}", sys.stderr)
        return NOTHING_FOUND
    taken = taker.take()
    line, gaps = encode_snapshot(taken)
    path = options.output or default_path(options.node)
    write = write_output if options.output else write_file
    trouble = ""
    try:
        write(path, line)  # first: the reader of the text may end before it has read all of it
    except OSError as error:
        trouble = f"cannot write {path!r}: {error.strerror}"
    # The text must not be mixed with a file on standard output.
    about = sys.stderr if path == STDOUT else sys.stdout
    _show(describe(replace(taken, gaps=gaps)), about)
    if trouble:
        _show(f"watchtower-agent: {trouble}", sys.stderr)
        return NOT_WRITTEN
    if path != STDOUT:
        size = f"{len(line) / 1000:.0f} kB"
        _show(f"written: {path} ({size}). Diagnose it together with the files of", about)
        _show("the other nodes of the job: watchtower diagnose FILE...", about)
    return DONE


def _show(text: str, file: TextIO) -> None:
    """Print a text, unless its reader has closed it. The exit code is that of the file."""
    try:
        print(text, file=file, flush=True)
    except BrokenPipeError:
        # Python would write the rest again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
