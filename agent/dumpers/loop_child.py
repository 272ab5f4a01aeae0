"""Reads source files for the agent in a process of its own: a file may hang, and this be killed.

Each argument is a question, {"root": ..., "path": ..., "lines": [...]}; each line printed answers
one, in their order. Line numbers are all that it ever says of a file. Standard library only.
"""

from __future__ import annotations

import json
import os
import stat
import sys

from agent.dumpers.in_root import open_in_root
from agent.dumpers.loop_lines import find_loops

MAX_SOURCE_BYTES = 1 << 20
"""Longer files are generated, and nobody looks for a loop in them."""

MAX_LINE_BYTES = 65_536
"""Likewise."""


BEGUN = "begun"
"""Printed first: from here on it is a file that takes long, not the start of a process."""


class NoSource(Exception):
    """This is no file that source is read from."""


def main() -> None:
    """Answer every question; each answer is out before the next file is touched."""
    print(BEGUN, flush=True)
    for argument in sys.argv[1:]:
        question = json.loads(argument)
        try:
            said: dict[str, object] = answer(question["root"], question["path"], question["lines"])
        except (OSError, ValueError, NoSource):
            said = {}
        print(json.dumps(said), flush=True)


def answer(root: str, path: str, lines: list[int]) -> dict[str, object]:
    """Return the loops around each line, null where nobody knows, and when the file changed."""
    source, changed_s = read_source(root, path)
    loops = find_loops(source, lines)
    return {"loops": [loops[line] for line in lines], "changed_s": changed_s}


def read_source(root: str, path: str) -> tuple[str, float]:
    """Return the text of a regular file under `root`, and when it was changed by the wall clock."""
    found = open_in_root(root, path)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise NoSource
        file = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(found)
    with open(file, "rb") as opened:
        changed_s = os.fstat(file).st_mtime
        raw = opened.read(MAX_SOURCE_BYTES + 1)
    if len(raw) > MAX_SOURCE_BYTES or b"\0" in raw:
        raise NoSource
    if max(map(len, raw.split(b"\n"))) > MAX_LINE_BYTES:
        raise NoSource
    return raw.decode("utf-8-sig", "replace"), changed_s
