"""Asks one handler of a training process's socket for its collective log.

The path is untrusted text: exactly that process must listen on the socket. No wait exceeds the
deadline: a forked worker may hold a dead rank's socket open and never answer.
"""

from __future__ import annotations

import http.client
import os
import socket
import stat
import struct
import time
from dataclasses import dataclass
from http import HTTPStatus

from agent.discovery.pages import is_local_mount
from agent.dumpers.open_in_root import open_in_root
from agent.mounts import mount_of
from agent.procfs import Proc, parse_fields
from watchtower.access.bounded_reply import bounded_reply, read_body

MAX_ANSWER_BYTES = 4 << 20
"""Bytes of an answer. A full ring of 2000 entries has 0.95 MB."""

_CREDENTIALS = struct.Struct("=3i")


class SocketRefused(Exception):
    """The path does not lead to a socket of this process; the message contains the reason."""


class NoAnswer(Exception):
    """The process did not answer as its library does; the message contains the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSocket:
    """The socket on which a process's library answers, according to its page."""

    pid: int
    path: str
    """The path as the process itself sees it."""

    def ask(self, proc: Proc, handler: str, deadline: float) -> bytes | None:
        """Return the handler's answer, or None if no handler has that name.

        Raises SocketRefused, NoAnswer, or OSError if the socket cannot be reached. Raises
        TimeoutError (an OSError) if the answer is not complete by `deadline`.
        """
        found = self._open(proc)
        try:
            # By descriptor: this is the socket that was checked, and its path may be of any length.
            connection = _UnixConnection(f"/proc/self/fd/{found}")
            try:
                connection.connect()
                self._check_listener(connection.sock)
                return _ask(connection, handler, deadline)
            finally:
                connection.close()
        finally:
            os.close(found)

    def _open(self, proc: Proc) -> int:
        # After a chroot the process does not see the mount of its root. The numbers are the
        # kernel's.
        mounts = proc.try_read(self.pid, "mountinfo") + Proc().try_read(os.getpid(), "mountinfo")

        def check(folder: int) -> None:
            mount = mount_of(Proc().try_read(os.getpid(), f"fdinfo/{folder}", 4096))
            if not is_local_mount(proc, self.pid, mounts, mount):
                raise SocketRefused("it is on a file system that may hang")

        try:
            found = open_in_root(proc.file(self.pid, "root"), self.path, check)
        except ValueError as error:
            raise SocketRefused(f"its path is {error}") from error
        status = os.fstat(found)
        if stat.S_ISSOCK(status.st_mode) and status.st_uid in _users(proc, self.pid):
            return found
        os.close(found)
        raise SocketRefused("it is not a socket of the process's user")

    def _check_listener(self, connection: socket.socket) -> None:
        """Check that the process itself called listen(2): the kernel names it as the peer."""
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(raw)[0] != self.pid:
            raise SocketRefused("another process listens on it")


def _users(proc: Proc, pid: int) -> set[int]:
    """Return real, effective, saved and file system user id of a process."""
    words = parse_fields(proc.try_read(pid, "status", 8192)).get("Uid", "").split()
    return {int(word) for word in words if word.isdigit()}


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        """Connect without waiting. Raises BlockingIOError if the listener's queue is full."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        self.sock.connect(self._path)


def _ask(connection: _UnixConnection, handler: str, deadline: float) -> bytes | None:
    try:
        connection.sock.settimeout(_seconds_to(deadline))
        connection.request("POST", f"/handler/{handler}", headers={"Connection": "close"})
        connection.response_class = bounded_reply(_seconds_to(deadline), MAX_ANSWER_BYTES)
        with connection.getresponse() as response:
            return None if response.status == HTTPStatus.NOT_FOUND else _read(response)
    except (http.client.IncompleteRead, ConnectionResetError) as error:
        raise NoAnswer("it closed the connection in the middle of its answer") from error
    except http.client.HTTPException as error:
        raise NoAnswer("it does not answer in HTTP") from error


def _read(response: http.client.HTTPResponse) -> bytes:
    if response.status != HTTPStatus.OK:
        raise NoAnswer(f"it answers with status {response.status}")
    if response.length is None:
        raise NoAnswer("its answer has no Content-Length")
    if response.length > MAX_ANSWER_BYTES:
        raise NoAnswer(f"its answer has {response.length} bytes; the limit is {MAX_ANSWER_BYTES}")
    return read_body(response, MAX_ANSWER_BYTES)


def _seconds_to(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("no whole answer in time")
    return left
