"""Limits of CPU time and memory for a command that reads files of other users."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from types import FrameType

from watchtower.commands.client import ClientError

CPU_S = 60.0
"""CPU seconds of one command. The snapshots of 16,384 ranks need some seconds."""

MEMORY_BYTES = 4 << 30
"""Private memory of one command. Snapshots of 256 MB need less than 3 GB."""


class _TimeUp(BaseException):
    """The CPU time is used up. Not an Exception, so that no rule of a diagnosis catches it."""


@contextlib.contextmanager
def bounded_run(what: str) -> Iterator[None]:
    """Raise ClientError if the block needs too much CPU time or memory. For the main thread."""
    old = resource.getrlimit(resource.RLIMIT_DATA)
    before = signal.signal(signal.SIGPROF, _end)
    try:
        soft = MEMORY_BYTES if old[0] == resource.RLIM_INFINITY else min(old[0], MEMORY_BYTES)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, old[1]))
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        yield
    except _TimeUp:
        raise ClientError(f"{what} need more than {CPU_S:g} s of CPU time") from None
    except MemoryError:
        raise ClientError(f"{what} need more than {MEMORY_BYTES >> 30} GB of memory") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_DATA, old)


def _end(_number: int, _frame: FrameType | None) -> None:
    raise _TimeUp
