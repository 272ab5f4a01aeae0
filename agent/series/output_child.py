"""Reads the end of a process's output in a separate process, which can be killed if a file hangs.

The argument is {"process": "/proc/PID", "lines": N}. It prints a list with an entry for each file.
It reads only what standard output and standard error are: regular files, not of pseudo file
systems, that the process itself may read. Pipes and terminals would lose what is read from them.
Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time

from agent.dumpers.file_rights import FileRights, parse_rights
from agent.dumpers.readable_file import NotReadable, check_readable, read_table, reopen
from agent.series.lines import clean_lines

STREAMS = {1: "stdout", 2: "stderr"}

BOTH = "output"

TAIL_BYTES = 65_536
"""Bytes read at the end of a file. Twenty lines have 2 kB; progress bars write long ones."""


def main() -> None:
    """Print the last lines of each file."""
    question = json.loads(sys.argv[1])
    print(json.dumps(read_output(question["process"], question["lines"])), flush=True)


def read_output(process: str, count: int) -> list[dict[str, object]]:
    """Return the last lines of the process's standard output and error, each file once."""
    found: dict[tuple[int, int], dict[str, object]] = {}
    try:
        rights = parse_rights(read_table(f"{process}/status"))
    except (OSError, ValueError):
        return []
    for number, stream in STREAMS.items():
        try:
            file, entry = _read_tail(f"{process}/fd/{number}", process, rights, count)
        except (OSError, ValueError, NotReadable):
            continue
        known = found.setdefault(file, {**entry, "stream": stream})
        if known["stream"] != stream:
            known["stream"] = BOTH
    return list(found.values())


def _read_tail(
    path: str, process: str, rights: FileRights, count: int
) -> tuple[tuple[int, int], dict[str, object]]:
    """Return device and inode of an open file of a process, and its last lines.

    A process can open its own file by this path, too: whatever the folders above it allow.
    """
    if not os.readlink(path).startswith("/"):
        raise NotReadable  # a pipe or a socket, which is not even opened
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        status = check_readable(descriptor, process, rights)
        file = reopen(descriptor)
    finally:
        os.close(descriptor)
    try:
        size = os.fstat(file).st_size
        raw = os.pread(file, TAIL_BYTES, max(0, size - TAIL_BYTES))
    finally:
        os.close(file)
    lines = clean_lines(raw, count, is_cut=size > TAIL_BYTES)
    age_s = max(0.0, time.time() - status.st_mtime)
    return (status.st_dev, status.st_ino), {"lines": lines, "age_s": age_s}
