"""The diagnosing process: answers requests from standard input until the tower closes it."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import sys
from pathlib import Path
from typing import BinaryIO

from watchtower.diagnoser import frames
from watchtower.diagnoser.messages import DiagnosisLimits, read_limits, write_gave_up
from watchtower.diagnoser.work import answer
from watchtower.service.daemon import put_off_full_collections

OOM_SCORE_ADJ = "800"
"""If memory runs out, the kernel ends this process before the tower or a training process."""

READY = b"ready"


class _GiveUpError(BaseException):
    """A brief try has used up its CPU time. No `except Exception` catches it."""


def main() -> int:
    """Answer requests until the tower closes the pipe."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE_ADJ)
    # Ctrl-C on the terminal is for the tower. This process ends at the end of its input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGVTALRM, _give_up)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # so that a print() does not write into an answer
    put_off_full_collections()
    # Collections during a diagnosis took a quarter of its time. Its memory is limited all the same.
    gc.disable()
    _write(sink, [READY])
    while True:
        try:
            request = frames.unpack(lambda size: _read(source, size))
        except EOFError:
            return 0
        _limit(read_limits(request))
        try:
            reply = answer(request)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except _GiveUpError:
            reply = write_gave_up()
        del request
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(sink, reply)
        del reply
        gc.collect()


def _give_up(signum: int, frame: object) -> None:
    raise _GiveUpError


def _limit(limits: DiagnosisLimits) -> None:
    """Set the limits of memory and CPU time. At the CPU limit, SIGPROF ends this process.

    A brief try gives up earlier, by an exception: a process that ended would have to be started
    again. The exception waits until a function of a C library returns. SIGPROF does not wait.
    """
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = (
        limits.memory_bytes if hard == resource.RLIM_INFINITY else min(limits.memory_bytes, hard)
    )
    with contextlib.suppress(OSError, ValueError):  # if that is forbidden, only CPU time is limited
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)
    signal.setitimer(signal.ITIMER_VIRTUAL, limits.brief_s)


def _read(source: BinaryIO, size: int) -> bytes:
    data = source.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _write(sink: BinaryIO, reply: list[bytes]) -> None:
    try:
        for part in frames.pack(reply):
            sink.write(part)
        sink.flush()
    except BrokenPipeError:
        os._exit(0)  # the tower has ended


if __name__ == "__main__":
    sys.exit(main())
