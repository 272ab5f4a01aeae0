"""Reads the ends of the files to which ranks write, in a process that can be killed if one hangs.

Each argument is a question: {"process": "/proc/PID", "descriptors": ["1"], "bytes": N}. Each
printed line answers one: the files of that process, each with what its end contains, in base64.
Only regular files of the user of the process, not of pseudo file systems, and by the descriptor of
the process, so that no link is followed. Standard library only.
"""

from __future__ import annotations

import base64
import json
import os
import sys

from agent.dumpers.user_files import (
    FileRights,
    NotReadable,
    open_descriptor,
    parse_rights,
    read_table,
)


def main() -> None:
    """Answer every question."""
    for word in sys.argv[1:]:
        question = json.loads(word)
        process, count = question["process"], question["bytes"]
        print(json.dumps(_read_files(process, question["descriptors"], count)), flush=True)


def _read_files(process: str, descriptors: list[str], count: int) -> list[dict[str, object]]:
    try:
        rights = parse_rights(read_table(f"{process}/status"))
    except (OSError, ValueError):
        return []
    found: list[dict[str, object]] = []
    for descriptor in descriptors:
        try:
            found.append(_read_end(process, descriptor, rights, count))
        except (OSError, NotReadable):
            continue
    return found


def _read_end(process: str, descriptor: str, rights: FileRights, count: int) -> dict[str, object]:
    file, status = open_descriptor(process, descriptor, rights)
    try:
        if status.st_uid != rights.user:
            raise NotReadable
        first = max(0, os.fstat(file).st_size - count)
        raw = os.pread(file, count, first)
    finally:
        os.close(file)
    return {
        "descriptor": descriptor,
        "file": f"{status.st_dev} {status.st_ino}",
        "first": first,
        "raw": base64.b64encode(raw).decode("ascii"),
    }
