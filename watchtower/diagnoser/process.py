"""The tower's side of a diagnosing process: it starts the process, sends requests and ends it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from watchtower.diagnoser import frames
from watchtower.diagnoser.messages import Answer, Request, read_answer
from watchtower.service.interpreter import module_command

WALL_PER_CPU = 5.0
"""Limit of the wall time of a diagnosis, as a multiple of its limit of CPU time."""

WALL_S = 10.0
"""Least limit of the wall time of a diagnosis, in seconds: the machine may be busy."""

PIPE_BYTES = 1 << 20
"""Bytes of one read or write, and of the buffer of a pipe: the kernel's limit for users other than
root. While the tower is busy, each call may wait for the interpreter. With a call for each batch of
dumps and the usual buffers of 64 KiB, a request of 45 MB took 0.6 s."""


class DiagnoserDiedError(Exception):
    """The process ended or was ended before it answered. The message contains the reason."""


class GaveUpError(Exception):
    """A brief try needs more CPU time than it has. The process is ready for the next request."""


class DiagnoserProcess:
    """One diagnosing process. Not thread-safe, except `kill`, which any thread may call."""

    def __init__(self) -> None:
        """Start the process without waiting until it is ready. Raises OSError.

        It is a new program, not a fork: a fork would contain locked locks of threads that do not
        exist in it.
        """
        # The same import path as here.
        found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            module_command("watchtower.diagnoser"),
            env=found,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        for pipe in (self._to, self._from):
            os.set_blocking(pipe, False)
            with contextlib.suppress(OSError):  # a smaller buffer works, too
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._is_ready = False

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def ask(self, request: Request, *, brief: bool = False) -> Answer:
        """Return the answer to one request. Raises DiagnoserDiedError; the process has then ended.

        `brief`: raises GaveUpError if the request needs more CPU time than a brief try has.
        """
        if brief and sum(map(len, request.bodies)) > request.limits.brief_bytes:
            raise GaveUpError
        until = time.monotonic() + max(WALL_S, WALL_PER_CPU * request.limits.cpu_s)
        try:
            if not self._is_ready:
                frames.unpack(lambda size: self._read(size, until))
                self._is_ready = True
            self._write(frames.pack(request.encode(brief=brief)), until)
            answer = read_answer(frames.unpack(lambda size: self._read(size, until)))
        except (TimeoutError, EOFError, OSError, ValueError, frames.FrameError) as error:
            self.kill()
            raise DiagnoserDiedError(self._explain(error, request)) from None
        if answer is None:
            raise GaveUpError
        return answer

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def _explain(self, error: Exception, request: Request) -> str:
        code = self._process.returncode
        if isinstance(error, TimeoutError):
            return "it did not answer in time"
        if code == -signal.SIGPROF:
            return f"it used more than {request.limits.cpu_s:g} s of CPU time"
        if code == -signal.SIGKILL:
            return "its process was killed, perhaps because memory ran out"
        if isinstance(error, EOFError | BrokenPipeError):
            return f"its process ended with code {code}"
        return f"its process sent an invalid answer: {error}"

    def _write(self, parts: Sequence[bytes], until: float) -> None:
        poll = select.poll()
        poll.register(self._to, select.POLLOUT)
        for piece in _join_small(parts):
            rest = memoryview(piece)
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
                piece = os.read(self._from, min(PIPE_BYTES, size - len(data)))
            except BlockingIOError:
                _wait(poll, until)
                continue
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)


def _join_small(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in fewer pieces: of `PIPE_BYTES`, or longer."""
    held: list[bytes] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= PIPE_BYTES:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def _wait(poll: select.poll, until: float) -> None:
    left_s = until - time.monotonic()
    if left_s <= 0 or not poll.poll(left_s * 1000):
        raise TimeoutError
