"""Reads source files for the agent in a separate process, which can be killed if a file hangs.

Each argument is a question, {"process": "/proc/PID", "path": ..., "lines": [...]}. Each printed
line answers one question, in the same order. Only line numbers of a file are printed. It reads only
regular files that the process itself may read, and no files of pseudo file systems. Standard
library only.
"""

from __future__ import annotations

import json
import os
import sys

from agent.dumpers.file_rights import SEARCH, parse_rights
from agent.dumpers.loop_lines import find_loops
from agent.dumpers.open_in_root import open_in_root
from agent.dumpers.readable_file import NotReadable, check_readable, read_table, reopen

MAX_SOURCE_BYTES = 1 << 20
"""Longer files are generated; no loop is searched in them."""

MAX_LINE_BYTES = 65_536
"""Files with longer lines are generated too."""

BEGUN = "begun"
"""Printed first. From then on a delay comes from a file, not from the start of the process."""


def main() -> None:
    """Answer every question. Each answer is printed before the next file is opened."""
    print(BEGUN, flush=True)
    for argument in sys.argv[1:]:
        question = json.loads(argument)
        try:
            reply: dict[str, object] = answer(
                question["process"], question["path"], question["lines"]
            )
        except (OSError, ValueError, NotReadable):
            reply = {}
        print(json.dumps(reply), flush=True)


def answer(process: str, path: str, lines: list[int]) -> dict[str, object]:
    """Return the loops around each line (null if unknown), and when the file changed."""
    source, changed_s = read_source(process, path)
    loops = find_loops(source, lines)
    return {"loops": [loops[line] for line in lines], "changed_s": changed_s}


def read_source(process: str, path: str) -> tuple[str, float]:
    """Return the text of a file as a process sees it, and its modification time (wall clock).

    Raises NotReadable, OSError or ValueError if it is not a regular file that the process may read.
    """
    rights = parse_rights(read_table(f"{process}/status"))

    def check(folder: int) -> None:
        if not rights.has(os.fstat(folder), SEARCH):
            raise NotReadable

    found = open_in_root(f"{process}/root", path, check)
    try:
        check_readable(found, process, rights)
        file = reopen(found)
    finally:
        os.close(found)
    with open(file, "rb") as opened:
        changed_s = os.fstat(file).st_mtime
        raw = opened.read(MAX_SOURCE_BYTES + 1)
    if len(raw) > MAX_SOURCE_BYTES or b"\0" in raw:
        raise NotReadable
    if max(map(len, raw.split(b"\n"))) > MAX_LINE_BYTES:
        raise NotReadable
    return raw.decode("utf-8-sig", "replace"), changed_s
