"""Reads for which descriptors a call waits, in a separate process that can be abandoned.

The arguments are the path of /proc and questions: "4711 poll 0x7ffd00 2" for two `struct pollfd` at
an address in the memory of a process, or "4711 epoll 5" for an epoll of a process. Each printed
line answers one question, in the same order: a list of descriptors.

Both reads may hang: one of memory at a lock of the target's mappings, one of an epoll at the lock
of the epoll, if a file in it does not answer. Standard library only.

Sources: poll(2), proc_pid_fdinfo(5).
"""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from agent.memory import read_memory

POLL, EPOLL = "poll", "epoll"

MAX_WATCHED = 16
"""Descriptors of one call that are read: a server opens its socket before its clients come."""

MAX_POLLED = 1024
"""Entries of one poll that are read. A program may keep entries without a descriptor, so that the
only descriptor among the first few need not be the only one."""

MAX_FDINFO_BYTES = 16_384
"""Bytes of the kernel's text about an epoll: some hundred descriptors."""

_POLLED = struct.Struct("=ihh")
"""`struct pollfd`: the descriptor comes first."""

_WATCHED = re.compile(r"^tfd: +(\d{1,9}) ", re.MULTILINE)


def read_polled(pid: int, address: int, count: int) -> list[int]:
    """Return the first descriptors of a poll. Raises OSError."""
    data = read_memory(pid, address, min(count, MAX_POLLED) * _POLLED.size)
    whole = len(data) - len(data) % _POLLED.size
    found = [number for number, *_ in _POLLED.iter_unpack(data[:whole]) if number >= 0]
    return found[:MAX_WATCHED]


def read_epoll(proc: str, pid: int, epoll: int) -> list[int]:
    """Return the descriptors that an epoll watches. Raises OSError."""
    with Path(f"{proc}/{pid}/fdinfo/{epoll}").open("rb", buffering=0) as file:
        text = file.read(MAX_FDINFO_BYTES).decode("ascii", "replace")
    return [int(number) for number in _WATCHED.findall(text)[:MAX_WATCHED]]


def answer(proc: str, words: Sequence[str]) -> list[int]:
    """Return the descriptors of one call; none where they cannot be read."""
    pid, kind, *numbers = words
    try:
        if kind == POLL:
            return read_polled(int(pid), int(numbers[0], 16), int(numbers[1]))
        return read_epoll(proc, int(pid), int(numbers[0]))
    except (OSError, OverflowError):
        return []


def main() -> None:
    """Answer every question. Each answer is printed before the next read."""
    proc, *questions = sys.argv[1:]
    for question in questions:
        print(json.dumps(answer(proc, question.split())), flush=True)
