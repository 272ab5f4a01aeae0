"""Asks one handler of the socket that a training process has for its collective records.

The path is untrusted text: the socket must be one on which that very process listens. Nothing waits
beyond the deadline: a forked worker holds a dead rank's socket open, and nobody answers there.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import time
from dataclasses import dataclass

from agent.discovery.pages import is_local_mount
from agent.dumpers.open_in_root import open_in_root
from agent.procfs import Proc, parse_fields

MAX_ANSWER_BYTES = 4 << 20
"""A full ring of 2000 entries is 0.95 MB."""

MAX_HEAD_BYTES = 16_384
"""Status line and headers; torch's server sends a hundred bytes."""

NOT_FOUND = 404
_OK = 200
_CREDENTIALS = struct.Struct("=3i")


class SocketRefused(Exception):
    """What lies at the path is not a socket of this process; the words say what it is."""


class NoAnswer(Exception):
    """The process did not answer as its library does; the words say how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSocket:
    """Where a process says that its library answers."""

    pid: int
    path: str
    """As the process itself sees it."""

    def ask(self, proc: Proc, handler: str, deadline: float) -> bytes | None:
        """Return the handler's answer; None when there is no handler of that name.

        Raises SocketRefused, NoAnswer, or OSError when the socket cannot be reached. TimeoutError,
        an OSError too, when it takes until `deadline`.
        """
        found = self._open(proc)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.setblocking(False)
                # By descriptor, so that it is what was checked, however long its path is.
                connection.connect(f"/proc/self/fd/{found}")
                self._check_listener(connection)
                request = (
                    f"POST /handler/{handler} HTTP/1.1\r\nHost: localhost\r\n"
                    "Connection: close\r\nContent-Length: 0\r\n\r\n"
                )
                _wait(connection, deadline).sendall(request.encode("ascii"))
                return _read_answer(connection, deadline)
        finally:
            os.close(found)

    def _open(self, proc: Proc) -> int:
        # After a chroot it does not see the mount of its root; the numbers are the kernel's.
        mounts = proc.try_read(self.pid, "mountinfo") + Proc().try_read(os.getpid(), "mountinfo")

        def check(folder: int) -> None:
            if not is_local_mount(mounts, folder):
                raise SocketRefused("it lies on a file system that may hang")

        try:
            found = open_in_root(proc.file(self.pid, "root"), self.path, check)
        except ValueError as error:
            raise SocketRefused(f"its path is {error}") from error
        status = os.fstat(found)
        if stat.S_ISSOCK(status.st_mode) and status.st_uid in _users(proc, self.pid):
            return found
        os.close(found)
        raise SocketRefused("it is no socket of the process's user")

    def _check_listener(self, connection: socket.socket) -> None:
        """Whoever called listen(2) is what the kernel calls the peer of a connection."""
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(raw)[0] != self.pid:
            raise SocketRefused("another process listens on it")


def _users(proc: Proc, pid: int) -> set[int]:
    """Return real, effective, saved and file system user of a process."""
    words = parse_fields(proc.try_read(pid, "status", 8192)).get("Uid", "").split()
    return {int(word) for word in words if word.isdigit()}


def _wait(connection: socket.socket, deadline: float) -> socket.socket:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError(errno.ETIMEDOUT, "no whole answer in time")
    connection.settimeout(left)
    return connection


def _read_answer(connection: socket.socket, deadline: float) -> bytes | None:
    answer = bytearray()
    head_end = -1
    length = MAX_ANSWER_BYTES
    while head_end < 0 or len(answer) < head_end + length:
        part = _wait(connection, deadline).recv(65536)
        if not part:
            break
        answer += part
        if head_end < 0:
            head_end, length = _find_body(answer)
            if length < 0:
                return None
    if head_end < 0 or len(answer) < head_end + length:
        raise NoAnswer("it hung up in the middle of its answer")
    return bytes(answer[head_end : head_end + length])


def _find_body(answer: bytearray) -> tuple[int, int]:
    """Return where the body begins and its length: -1 and any while the head is not whole.

    A length of -1 says that there is no such handler.
    """
    end = answer.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    if end < 0:
        if len(answer) >= MAX_HEAD_BYTES:
            raise NoAnswer("it does not answer in HTTP")
        return -1, 0
    status_line, *headers = bytes(answer[:end]).split(b"\r\n")
    words = status_line.split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise NoAnswer("it does not answer in HTTP")
    status = int(words[1][:9])
    if status == NOT_FOUND:
        return end + 4, -1
    if status != _OK:
        raise NoAnswer(f"it answers with status {status}")
    fields = parse_fields(b"\n".join(header.lower() for header in headers))
    length = fields.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) < 16):
        raise NoAnswer("it does not say how long its answer is")
    if int(length) > MAX_ANSWER_BYTES:
        raise NoAnswer(f"its answer has {length} bytes, at most {MAX_ANSWER_BYTES} are read")
    return end + 4, int(length)
