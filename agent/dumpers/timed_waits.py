"""When a wait in the kernel ends by itself, from the arguments of the system call.

Only calls with a time of day or of the clock are read: a relative timeout does not show when the
call began. Standard library only.

Sources: futex(2), clock_nanosleep(2), and the system call tables of Linux for x86-64 and AArch64.
"""

from __future__ import annotations

import platform
import struct
import time
from collections.abc import Sequence

from agent.dumpers.frame_tables import Read

CLOCK_NANOSLEEP, FUTEX = (115, 98) if platform.machine() == "aarch64" else (230, 202)
TIMER_ABSTIME = 1
FUTEX_COMMAND, FUTEX_CLOCK_REALTIME = 0x7F, 0x100
FUTEX_WAIT_BITSET, FUTEX_LOCK_PI, FUTEX_LOCK_PI2 = 9, 6, 13

CLOCKS = {0: time.CLOCK_REALTIME, 1: time.CLOCK_MONOTONIC, 7: time.CLOCK_BOOTTIME}

MAX_LEFT_S = 1e9
"""Seconds, thirty years: programs that wait without an end often give some large time."""


def find_end(words: Sequence[bytes], read: Read) -> float | None:
    """Return the seconds until a call ends by itself; None if it does not, or that is not known.

    `words`: those of /proc/PID/task/TID/syscall, with the number and six arguments. Raises
    ValueError if they are no numbers.
    """
    if len(words) < 9:
        return None
    number, (first, second, third, fourth) = int(words[0]), [int(each, 16) for each in words[1:5]]
    if number == CLOCK_NANOSLEEP and second & TIMER_ABSTIME and first in CLOCKS:
        return _left(CLOCKS[first], third, read)
    if number != FUTEX or not fourth:
        return None
    command = second & FUTEX_COMMAND
    if command == FUTEX_LOCK_PI:
        return _left(time.CLOCK_REALTIME, fourth, read)
    if command in (FUTEX_WAIT_BITSET, FUTEX_LOCK_PI2):
        is_real = bool(second & FUTEX_CLOCK_REALTIME)
        return _left(time.CLOCK_REALTIME if is_real else time.CLOCK_MONOTONIC, fourth, read)
    return None


def _left(clock: int, at: int, read: Read) -> float | None:
    data = read(at, 16)
    if len(data) < 16:
        return None
    seconds, nanoseconds = struct.unpack("=qq", data)
    left = float(seconds + nanoseconds * 1e-9 - time.clock_gettime(clock))
    return left if 0 < left <= MAX_LEFT_S else None
