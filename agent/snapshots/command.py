"""`watchtower-agent snapshot`: writes what the ranks of this node do now, without a tower."""

from __future__ import annotations

import sys
from dataclasses import replace

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
from watchtower.printable import printable
from watchtower.wire.bounds import MAX_TEXT

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
        for sentence in filter(None, (none, taker.mistakes, *taker.gaps.sentences())):
            print(f"watchtower-agent: {printable(sentence, MAX_TEXT)}", file=sys.stderr)
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
    print(describe(replace(taken, gaps=gaps)), file=about)
    if trouble:
        print(f"watchtower-agent: {trouble}", file=sys.stderr)
        return NOT_WRITTEN
    if path != STDOUT:
        print(
            f"written: {path} ({len(line) / 1000:.0f} kB). Diagnose it together with the files of"
        )
        print("the other nodes of the job: watchtower diagnose FILE...")
    return DONE
