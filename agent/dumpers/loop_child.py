"""Reads source files for the agent in a separate process, which can be killed if a file hangs.

Each argument is a question, {"process": "/proc/PID", "path": ..., "lines": [...]}. Each printed
line answers one question, in the same order. Only line numbers of a file are printed. It reads only
regular files that the process itself may read, and no files of pseudo file systems. Standard
library only.
"""

from __future__ import annotations

import json
import os
import stat
import sys

from agent.dumpers.file_rights import READ, SEARCH, FileRights, parse_rights
from agent.dumpers.loop_lines import find_loops
from agent.dumpers.open_in_root import open_in_root
from agent.mounts import PSEUDO_FILE_SYSTEMS, mount_of, type_of

MAX_SOURCE_BYTES = 1 << 20
"""Longer files are generated; no loop is searched in them."""

MAX_LINE_BYTES = 65_536
"""Files with longer lines are generated too."""

MAX_TABLE_BYTES = 1 << 20
"""Bytes read of a file in /proc. A node with thousands of mounts has less."""

BEGUN = "begun"
"""Printed first. From then on a delay comes from a file, not from the start of the process."""


class NoSource(Exception):
    """The source of this file is not read."""


def main() -> None:
    """Answer every question. Each answer is printed before the next file is opened."""
    print(BEGUN, flush=True)
    for argument in sys.argv[1:]:
        question = json.loads(argument)
        try:
            reply: dict[str, object] = answer(
                question["process"], question["path"], question["lines"]
            )
        except (OSError, ValueError, NoSource):
            reply = {}
        print(json.dumps(reply), flush=True)


def answer(process: str, path: str, lines: list[int]) -> dict[str, object]:
    """Return the loops around each line (null if unknown), and when the file changed."""
    source, changed_s = read_source(process, path)
    loops = find_loops(source, lines)
    return {"loops": [loops[line] for line in lines], "changed_s": changed_s}


def read_source(process: str, path: str) -> tuple[str, float]:
    """Return the text of a file as a process sees it, and its modification time (wall clock).

    Raises NoSource, OSError or ValueError for what is not a regular file that the process may read.
    """
    rights = parse_rights(_read(f"{process}/status"))

    def check(folder: int) -> None:
        if not rights.has(os.fstat(folder), SEARCH):
            raise NoSource

    found = open_in_root(f"{process}/root", path, check)
    try:
        _check_file(found, process, rights)
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


def _check_file(found: int, process: str, rights: FileRights) -> None:
    """Raise NoSource if the file is not regular, on a pseudo file system, or not readable."""
    status = os.fstat(found)
    if not stat.S_ISREG(status.st_mode) or not rights.has(status, READ):
        raise NoSource
    # After a chroot the process does not see the mount of its root. The numbers are the kernel's.
    mounts = _read(f"{process}/mountinfo") + _read("/proc/self/mountinfo")
    kind = type_of(mounts, mount_of(_read(f"/proc/self/fdinfo/{found}")))
    if not kind or kind in PSEUDO_FILE_SYSTEMS:
        raise NoSource


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(MAX_TABLE_BYTES)
