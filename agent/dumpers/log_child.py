"""Reads the ends of files, in a process that can be killed if one hangs.

The arguments are the folder of the descriptors of the agent, the bytes to read of each file, and
the numbers of descriptors, which the agent has checked. Each printed line answers one: where its
end begins, and what it contains in base64. Standard library only.
"""

from __future__ import annotations

import base64
import json
import os
import sys


def main() -> None:
    """Read every file."""
    folder, count, *numbers = sys.argv[1:]
    for number in numbers:
        print(json.dumps(_read_end(f"{folder}/{number}", int(count))), flush=True)


def _read_end(path: str, count: int) -> dict[str, object]:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {"first": 0, "raw": ""}
    try:
        first = max(0, os.fstat(file).st_size - count)
        raw = os.pread(file, count, first)
    finally:
        os.close(file)
    return {"first": first, "raw": base64.b64encode(raw).decode("ascii")}
