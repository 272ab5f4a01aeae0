"""The tower's side of a diagnosing process: start it, ask it, end it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from watchtower.diagnoser import frames
from watchtower.diagnoser.messages import Answer, Request, read_answer

WALL_PER_CPU = 5.0
"""A diagnosis that has not used up its CPU time may take this many times as long, ..."""

WALL_S = 10.0
"""... and this long at least: the machine may be busy."""

READ_BYTES = 1 << 20


class DiagnoserDiedError(Exception):
    """The process ended, or was ended, before it answered; the message says why."""


class DiagnoserProcess:
    """One process. Not thread-safe, but `kill` may come from any thread."""

    def __init__(self) -> None:
        """Start it; it gets ready by itself. Raises OSError.

        A new program, not a copy of this one: a copy would hold the locks of threads it lacks.
        """
        # What this process imports, and nothing from a folder that happens to be the current one.
        found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "watchtower.diagnoser"],
            env=found,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        self._is_ready = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, request: Request) -> Answer:
        """Have one case diagnosed. Raises DiagnoserDiedError; the process is gone then."""
        until = time.monotonic() + max(WALL_S, WALL_PER_CPU * request.limits.cpu_s)
        try:
            if not self._is_ready:
                frames.unpack(lambda size: self._read(size, until))
                self._is_ready = True
            self._write(frames.pack(request.encode()), until)
            return read_answer(frames.unpack(lambda size: self._read(size, until)))
        except (TimeoutError, EOFError, OSError, ValueError, frames.FrameError) as error:
            self.kill()
            raise DiagnoserDiedError(self._say_why(error, request)) from None

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def _say_why(self, error: Exception, request: Request) -> str:
        code = self._process.returncode
        if isinstance(error, TimeoutError):
            return "it did not answer in time"
        if code == -signal.SIGPROF:
            return f"it took more than {request.limits.cpu_s:g} s of CPU time"
        if code == -signal.SIGKILL:
            return "its process was killed, perhaps for lack of memory"
        if isinstance(error, EOFError | BrokenPipeError):
            return f"its process ended with code {code}"
        return f"its process answered nonsense ({error})"

    def _write(self, parts: Sequence[bytes], until: float) -> None:
        poll = select.poll()
        poll.register(self._to, select.POLLOUT)
        for part in parts:
            rest = memoryview(part)
            while rest:
                try:
                    rest = rest[os.write(self._to, rest) :]
                except BlockingIOError:
                    _wait(poll, until)

    def _read(self, size: int, until: float) -> bytes:
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        data = bytearray()
        while len(data) < size:
            try:
                piece = os.read(self._from, min(READ_BYTES, size - len(data)))
            except BlockingIOError:
                _wait(poll, until)
                continue
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)


def _wait(poll: select.poll, until: float) -> None:
    left_s = until - time.monotonic()
    if left_s <= 0 or not poll.poll(left_s * 1000):
        raise TimeoutError
